//! The text if the user names none: the Rust sources that cargo fetched to build Everstep.
//!
//! They are real text, and they are there without a network. Their order (by a hash) mixes all
//! packages into the first megabytes. In the order of paths, generated bindings would be two fifths
//! of these.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::text::TextError;
use super::text_files::below;

/// The largest file that counts, bytes. Larger files are tables and generated code.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// The largest text, bytes.
const MAX_TEXT_BYTES: usize = 32_000_000;

/// The `.rs` files of the packages in a `Cargo.lock`, given as text, that are found below
/// `cargo_home`'s `registry/src`, in the order in which to read them.
///
/// It leaves out packages with names that end in `-sys`, files over 64 KiB, repeated content, and
/// files that would exceed 32 MB. The order depends on packages and the paths in them alone, so two
/// machines that built the same program for the same platform have the same text.
///
/// # Errors
///
/// [`TextError::NoDefault`] if there is no such file.
pub fn default_text(lockfile: &str, cargo_home: &Path) -> Result<Vec<PathBuf>, TextError> {
    let sources = cargo_home.join("registry").join("src");
    let mut files = Vec::new();
    for package in packages(lockfile)? {
        for directory in unpacked(&sources, &package) {
            let found = below(&directory)?.into_iter();
            let rust = found.filter(|path| path.extension().is_some_and(|it| it == "rs"));
            files.extend(rust.map(|path| (place(&package, &directory, &path), path)));
        }
    }
    files.sort();
    let text = fill(files.into_iter().map(|(_, path)| path))?;
    if text.is_empty() {
        return Err(TextError::NoDefault { path: sources });
    }
    Ok(text)
}

/// `name-version` of each package that cargo fetched, as its directory is named.
fn packages(lockfile: &str) -> Result<Vec<String>, TextError> {
    #[derive(serde::Deserialize)]
    struct Lockfile {
        #[serde(default)]
        package: Vec<Package>,
    }
    #[derive(serde::Deserialize)]
    struct Package {
        name: String,
        version: String,
        /// The registry. The workspace's own packages have none.
        source: Option<String>,
    }
    let Lockfile { package } = toml::from_str(lockfile)?;
    let fetched = package.into_iter().filter(|package| package.source.is_some());
    let wanted = fetched.filter(|package| !package.name.ends_with("-sys"));
    Ok(wanted.map(|package| format!("{}-{}", package.name, package.version)).collect())
}

/// The directories of `package`, one for each registry that served it. Usually that is one.
fn unpacked(sources: &Path, package: &str) -> Vec<PathBuf> {
    let registries = fs::read_dir(sources).into_iter().flatten().flatten();
    registries.map(|registry| registry.path().join(package)).filter(|path| path.is_dir()).collect()
}

/// The key of a file's place in the order.
fn place(package: &str, directory: &Path, path: &Path) -> [u8; 32] {
    let inside = path.strip_prefix(directory).unwrap_or(path);
    let mut hasher = blake3::Hasher::new();
    hasher.update(package.as_bytes());
    for part in inside {
        hasher.update(b"/").update(part.as_encoded_bytes());
    }
    hasher.finalize().into()
}

/// The first of `files` that fit. Each content counts once.
fn fill(files: impl Iterator<Item = PathBuf>) -> Result<Vec<PathBuf>, TextError> {
    let mut text = Vec::new();
    let mut bytes = 0;
    let mut contents = BTreeSet::new();
    for path in files {
        let unreadable = |source| TextError::unreadable(&path, source);
        if fs::metadata(&path).map_err(unreadable)?.len() > MAX_FILE_BYTES {
            continue;
        }
        let content = fs::read(&path).map_err(unreadable)?;
        if !contents.insert(*blake3::hash(&content).as_bytes()) {
            continue;
        }
        bytes += content.len();
        if bytes > MAX_TEXT_BYTES {
            break;
        }
        text.push(path);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKFILE: &str = r#"
        version = 4
        [[package]]
        name = "alpha"
        version = "1.0.0"
        source = "registry+https://github.com/rust-lang/crates.io-index"
        dependencies = ["beta-sys"]
        [[package]]
        name = "beta-sys"
        version = "0.2.0"
        source = "registry+https://github.com/rust-lang/crates.io-index"
        [[package]]
        name = "ours"
        version = "0.1.0"
        [[package]]
        name = "never-fetched"
        version = "3.0.0"
        source = "registry+https://github.com/rust-lang/crates.io-index"
    "#;

    /// A cargo home with these files in its one registry.
    fn cargo_home(files: &[(&str, &str)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().expect("a directory");
        for (name, content) in files {
            let path = home.path().join("registry/src/index.crates.io-0").join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, content).expect("a file");
        }
        home
    }

    fn names(home: &tempfile::TempDir) -> Vec<String> {
        let files = default_text(LOCKFILE, home.path()).expect("a text");
        let name = |path: PathBuf| {
            let inside = path.strip_prefix(home.path().join("registry/src")).expect("inside");
            let inside = inside.components().skip(1).collect::<PathBuf>();
            inside.display().to_string()
        };
        files.into_iter().map(name).collect()
    }

    fn sorted(mut names: Vec<String>) -> Vec<String> {
        names.sort();
        names
    }

    #[test]
    fn it_is_the_small_rust_files_of_fetched_packages() {
        let large = "x".repeat(64 * 1024 + 1);
        let home = cargo_home(&[
            ("alpha-1.0.0/src/lib.rs", "one"),
            ("alpha-1.0.0/src/a/b.rs", &large[1..]),
            ("alpha-1.0.0/src/large.rs", &large),
            ("alpha-1.0.0/README.md", "text"),
            ("alpha-2.0.0/src/lib.rs", "another version"),
            ("beta-sys-0.2.0/src/lib.rs", "bindings"),
            ("ours-0.1.0/src/lib.rs", "a stranger of the same name"),
        ]);
        let expected = ["alpha-1.0.0/src/a/b.rs", "alpha-1.0.0/src/lib.rs"];
        assert_eq!(sorted(names(&home)), expected);
    }

    #[test]
    fn repeated_content_counts_once() {
        let home =
            cargo_home(&[("alpha-1.0.0/src/lib.rs", "one"), ("alpha-1.0.0/src/copy.rs", "one")]);
        assert_eq!(names(&home).len(), 1);
    }

    #[test]
    fn it_stops_at_its_limit() {
        let content = |number| format!("{number:060000}");
        let files: Vec<_> = (0..600)
            .map(|number| (format!("alpha-1.0.0/src/{number}.rs"), content(number)))
            .collect();
        let files: Vec<_> = files.iter().map(|(name, text)| (&name[..], &text[..])).collect();
        assert_eq!(names(&cargo_home(&files)).len(), MAX_TEXT_BYTES / 60_000);
    }

    #[test]
    fn the_order_is_the_same_on_every_machine() {
        let file = |number| (format!("alpha-1.0.0/src/{number}.rs"), format!("{number}"));
        let files: Vec<_> = (0..5).map(file).collect();
        let files: Vec<_> = files.iter().map(|(name, text)| (&name[..], &text[..])).collect();
        let (here, there) = (names(&cargo_home(&files)), names(&cargo_home(&files)));
        assert_eq!(here, there);
        assert_ne!(here, sorted(there), "it is not that of the paths");
    }

    #[test]
    fn without_sources_it_asks_for_a_text() {
        let home = tempfile::tempdir().expect("a directory");
        let error = default_text(LOCKFILE, home.path()).expect_err("nothing is there");
        assert!(error.to_string().contains("--data"), "{error}");
        assert!(matches!(error, TextError::NoDefault { .. }));
    }

    #[test]
    fn a_broken_lockfile_is_an_error() {
        let home = tempfile::tempdir().expect("a directory");
        let error = default_text("[[package", home.path()).expect_err("no lock file");
        assert!(matches!(error, TextError::Lockfile(_)));
    }
}
