//! The Mooncake binding links CPython: tells the programs of this crate where its library is.

fn main() {
    pyo3_build_config::add_libpython_rpath_link_args();
}
