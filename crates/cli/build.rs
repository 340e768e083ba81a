//! Tells the binary and the tests that embed CPython (feature `embed`) where its library is.

fn main() {
    #[cfg(feature = "embed")]
    pyo3_build_config::add_libpython_rpath_link_args();
}
