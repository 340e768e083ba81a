//! `cargo xtask wheel`: the wheel as it is released.
//!
//! | the wheel | because |
//! |---|---|
//! | runs on glibc 2.28 and later | zig compiles the C code and links: it knows which symbols each glibc had |
//! | is to be the same, byte by byte, wherever it is built | no path or time of the machine gets into it (`--twice` compares) |
//! | names every crate that is linked, with its licence | notices and an SBOM (CycloneDX) are made from what cargo links |
//!
//! maturin, zig and auditwheel are installed by their hashes (`.ci/requirements-wheel.lock`) into `target/wheel-tools`.
//! A wheel for another processor is cross-compiled (`--target`); the toolchain must have the standard library for it.

mod crates;
mod look;
mod notices;
mod sbom;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use self::crates::Linked;

const HOST: &str = "x86_64-unknown-linux-gnu";
/// The oldest glibc that the wheel runs on, as its tag says: that of RHEL 8 and Debian 10.
const GLIBC: (u32, u32) = (2, 28);
/// Written into `python/`, from where maturin takes them; the names are those of `python/pyproject.toml`.
const NOTICES: &str = "THIRD-PARTY-NOTICES.txt";
const STANDARD_LIBRARY: &str = "RUST-STANDARD-LIBRARY.html";
const SBOM: &str = "tensorhold.cdx.json";

#[derive(Args)]
pub(crate) struct Wheel {
    /// Build nothing: look at the wheel that is there
    #[arg(long, conflicts_with = "twice")]
    check: bool,
    /// Build it once more, in another folder, and compare the two
    #[arg(long)]
    twice: bool,
    /// What to build for
    #[arg(long, default_value = HOST, value_parser = [HOST, "aarch64-unknown-linux-gnu"])]
    target: String,
    /// Progress on standard error, and one JSON object on standard output, last
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Wheel) -> Result<()> {
    // As compilers name them.
    let root = crate::repository().canonicalize().context("no repository")?;
    let target_dir = crate::target_dir().canonicalize().context("no target folder")?;
    let target = options.target.as_str();
    if !options.check {
        Toolchain::find()?.require(target)?;
    }
    let tools = Tools::ready(&target_dir)?;
    let wheel = if options.check {
        the_wheel(&wheels(&target_dir, target))?
    } else {
        build(&tools, &root, &target_dir, target)?
    };
    let mut report = look::look(&tools, &wheel, &Linked::find(&root, target)?)?;
    if options.twice {
        report.equal = Some(report.sha256 == built_elsewhere(&tools, &root, target)?);
    }
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        report.print(&wheel);
    }
    ensure!(
        report.equal != Some(false),
        "the wheel depends on the folder in which it is built"
    );
    Ok(())
}

/// The wheel for this machine that `cargo xtask wheel` has built.
pub(crate) fn built() -> Result<PathBuf> {
    the_wheel(&wheels(&crate::target_dir(), HOST))
}

/// Where the wheels are: the README's commands look for one, so those for other machines lie apart.
fn wheels(target_dir: &Path, target: &str) -> PathBuf {
    let place = target_dir.join("wheels");
    if target == HOST { place } else { place.join(target) }
}

fn the_wheel(place: &Path) -> Result<PathBuf> {
    let mut found = found_wheels(place)?;
    match (found.pop(), found.is_empty()) {
        (Some(wheel), true) => Ok(wheel),
        (None, _) => bail!(
            "there is no wheel in {}: build one with cargo xtask wheel",
            place.display()
        ),
        (Some(_), false) => bail!("there are several wheels in {}: remove them", place.display()),
    }
}

fn found_wheels(place: &Path) -> Result<Vec<PathBuf>> {
    if !place.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(place).with_context(|| format!("{} cannot be read", place.display()))? {
        let path = entry?.path();
        found.extend(path.extension().is_some_and(|ends| ends == "whl").then_some(path));
    }
    Ok(found)
}

/// Builds the wheel of the checkout in `root`, and says where it is.
fn build(tools: &Tools, root: &Path, target_dir: &Path, target: &str) -> Result<PathBuf> {
    let python = root.join("python");
    let linked = Linked::find(root, target)?;
    write(&python.join(NOTICES), &notices::text(&linked)?)?;
    write(&python.join(SBOM), &sbom::text(&linked)?)?;
    let toolchain = Toolchain::find()?;
    let rights = toolchain.sysroot.join("share/doc/rust/COPYRIGHT-library.html");
    std::fs::copy(&rights, python.join(STANDARD_LIBRARY)).with_context(|| {
        format!(
            "{} cannot be copied: the licences of Rust's standard library come with Rust's own distribution",
            rights.display()
        )
    })?;

    let place = wheels(target_dir, target);
    for old in found_wheels(&place)? {
        std::fs::remove_file(&old).with_context(|| format!("{} cannot be removed", old.display()))?;
    }
    let mut maturin = Command::new(tools.program("maturin"));
    maturin
        .args([
            "build",
            "--quiet",
            "--locked",
            "--profile",
            "wheel",
            "--zig",
            "--target",
            target,
        ])
        .args(["--compatibility", &format!("manylinux_{}_{}", GLIBC.0, GLIBC.1)])
        .args(["--sbom-include", SBOM, "--manifest-path", "python/Cargo.toml", "--out"])
        .arg(&place)
        .current_dir(root)
        .env("CARGO_TARGET_DIR", target_dir)
        .env("CARGO_ZIGBUILD_PYTHON_PATH", tools.program("python"))
        // The times of the files in the wheel are fixed without it.
        .env_remove("SOURCE_DATE_EPOCH")
        .stdout(Stdio::from(std::io::stderr()));
    hide_paths(&mut maturin, &toolchain, root, target_dir, target)?;
    let status = maturin.status().context("maturin could not be started")?;
    ensure!(status.success(), "{maturin:?} ended with {status}");
    the_wheel(&place)
}

/// Has the compilers write other names for the folders of this machine, in messages of panics and of assertions in C.
fn hide_paths(
    maturin: &mut Command,
    toolchain: &Toolchain,
    root: &Path,
    target_dir: &Path,
    target: &str,
) -> Result<()> {
    let shown = |path: &Path| -> Result<String> {
        let text = path.to_str().filter(|text| !text.contains(char::is_whitespace));
        Ok(text
            .with_context(|| {
                format!(
                    "{} has a space in it, which C compilers' flags cannot have",
                    path.display()
                )
            })?
            .to_owned())
    };
    // The last one that fits is used: what lies in another comes after it.
    let hidden = [
        (shown(root)?, "tensorhold".to_owned()),
        (shown(target_dir)?, "target".to_owned()),
        (shown(&cargo_home()?.join("registry/src"))?, "registry".to_owned()),
        (
            shown(&toolchain.sysroot.join("lib/rustlib/src/rust"))?,
            format!("/rustc/{}", toolchain.commit),
        ),
    ];
    let rust = hidden
        .iter()
        .map(|(path, name)| format!("--remap-path-prefix={path}={name}"));
    let c = hidden
        .iter()
        .map(|(path, name)| format!("-ffile-prefix-map={path}={name}"));
    let variable = format!("CFLAGS_{}", target.replace('-', "_"));
    maturin.env("CARGO_ENCODED_RUSTFLAGS", rust.collect::<Vec<_>>().join("\x1f"));
    maturin.env(variable, c.collect::<Vec<_>>().join(" "));
    Ok(())
}

/// Builds the same files in another folder, with a target folder of its own, and tells the wheel's SHA-256.
fn built_elsewhere(tools: &Tools, root: &Path, target: &str) -> Result<String> {
    let git = |arguments: &[&str]| -> Result<std::process::ExitStatus> {
        let mut git = Command::new("git");
        git.args(arguments).current_dir(root);
        git.status().context("git could not be started")
    };
    ensure!(
        git(&["diff", "--quiet"])?.success(),
        "the files differ from git's index, which the second build takes them from: add or commit them first"
    );
    let elsewhere = tempfile::tempdir().context("no folder for the second build")?;
    let copy = elsewhere.path().join("of/another/length/tensorhold");
    let copied = git(&["checkout-index", "--all", &format!("--prefix={}/", copy.display())])?;
    ensure!(copied.success(), "git could not write the files to {}", copy.display());
    look::sha256(&build(tools, &copy, &copy.join("target"), target)?)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// The standard output of a program that has to succeed.
fn output(command: &mut Command) -> Result<String> {
    let said = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{command:?} could not be started"))?;
    ensure!(said.status.success(), "{command:?} ended with {}", said.status);
    String::from_utf8(said.stdout).with_context(|| format!("{command:?} printed no text"))
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    Ok(std::env::home_dir().context("no home folder")?.join(".cargo"))
}

/// The Rust toolchain in use.
struct Toolchain {
    sysroot: PathBuf,
    /// Where its sources were, in Rust's repository.
    commit: String,
}

impl Toolchain {
    fn find() -> Result<Self> {
        let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
        let version = output(Command::new("rustc").arg("-vV"))?;
        let commit = version.lines().find_map(|line| line.strip_prefix("commit-hash: "));
        Ok(Self {
            sysroot: sysroot.trim().into(),
            commit: commit
                .context("rustc does not say from which commit it was made")?
                .to_owned(),
        })
    }

    /// Fails if it cannot compile for the target. The compiler would say so, too, but after all tools are installed.
    fn require(&self, target: &str) -> Result<()> {
        ensure!(
            self.sysroot.join("lib/rustlib").join(target).join("lib").is_dir(),
            "the Rust toolchain in {} has no standard library for {target}: add it with rustup target add {target}",
            self.sysroot.display()
        );
        Ok(())
    }
}

/// The Python environment with maturin, zig and auditwheel.
struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// Makes it, unless it is there with what the lock file lists.
    fn ready(target_dir: &Path) -> Result<Self> {
        let lock = crate::repository().join(".ci/requirements-wheel.lock");
        let wanted = std::fs::read_to_string(&lock).with_context(|| format!("{} cannot be read", lock.display()))?;
        let folder = target_dir.join("wheel-tools");
        let complete = folder.join("complete");
        if std::fs::read_to_string(&complete).is_ok_and(|has| has == wanted) {
            return Ok(Self { folder });
        }
        eprintln!("installing maturin, zig and auditwheel into {}", folder.display());
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("{} is in the way", folder.display()))?;
        }
        let tools = Self { folder };
        output(Command::new("python3").args(["-m", "venv"]).arg(&tools.folder))?;
        output(
            Command::new(tools.program("python"))
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(["--no-deps", "--require-hashes", "--requirement"])
                .arg(&lock),
        )?;
        write(&complete, &wanted)?;
        Ok(tools)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_toolchain_without_the_targets_library_says_how_to_add_it() {
        let target = "aarch64-unknown-linux-gnu";
        let folder = tempfile::tempdir().expect("a folder");
        let toolchain = super::Toolchain {
            sysroot: folder.path().to_owned(),
            commit: String::new(),
        };
        let said = toolchain.require(target).expect_err("no library").to_string();
        assert!(said.ends_with("rustup target add aarch64-unknown-linux-gnu"), "{said}");
        std::fs::create_dir_all(folder.path().join("lib/rustlib").join(target).join("lib")).expect("made");
        toolchain.require(target).expect("a library");
    }
}
