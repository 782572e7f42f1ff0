//! From a name that a user gives to the files that it stands for.

use std::fs;
use std::path::{Path, PathBuf};

use super::text::TextError;

/// The files that `path` stands for, in the order in which a run reads their text:
///
/// - a file: itself.
/// - a directory: the regular files below it in path order, without hidden files and directories. A
///   link to a file counts as a file. A link to a directory is not followed.
/// - `@FILE`: the paths on the lines of that file, in its order. Relative paths begin at the
///   working directory. Empty lines are left out. The function does not look at listed files.
pub fn resolve(path: &str) -> Result<Vec<PathBuf>, TextError> {
    let (path, files) = match path.strip_prefix('@') {
        Some(list) => (Path::new(list), listed(Path::new(list))?),
        None if Path::new(path).is_dir() => (Path::new(path), below(Path::new(path))?),
        None => {
            let path = Path::new(path);
            fs::metadata(path).map_err(|source| TextError::unreadable(path, source))?;
            (path, vec![path.to_path_buf()])
        }
    };
    if files.is_empty() {
        return Err(TextError::NoFiles { path: path.to_path_buf() });
    }
    Ok(files)
}

fn listed(list: &Path) -> Result<Vec<PathBuf>, TextError> {
    let text = fs::read_to_string(list).map_err(|source| TextError::unreadable(list, source))?;
    Ok(text.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect())
}

/// The regular files below `directory`, in path order.
pub(super) fn below(directory: &Path) -> Result<Vec<PathBuf>, TextError> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let unreadable = |source| TextError::unreadable(&directory, source);
        for entry in fs::read_dir(&directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // The type of the entry itself does not follow links, so this enters no loop.
            if entry.file_type().map_err(unreadable)?.is_dir() {
                directories.push(entry.path());
            } else if entry.path().is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with these files in it. Each file holds its own name.
    fn tree(files: &[&str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for name in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, name).expect("a file");
        }
        directory
    }

    fn resolved(path: &Path) -> Result<Vec<PathBuf>, TextError> {
        resolve(path.to_str().expect("UTF-8"))
    }

    #[test]
    fn a_directory_stands_for_the_files_below_it_in_path_order() {
        let directory = tree(&["b", "a/z", "a/b/c", "a-", "A"]);
        let files = resolved(directory.path()).expect("files");
        let expected = ["A", "a/b/c", "a/z", "a-", "b"].map(|name| directory.path().join(name));
        assert_eq!(files, expected);
    }

    #[test]
    fn a_file_stands_for_itself() {
        let directory = tree(&[".hidden"]);
        let file = directory.path().join(".hidden");
        assert_eq!(resolved(&file).expect("files"), [file]);
    }

    #[test]
    fn hidden_files_are_left_out() {
        let directory = tree(&[".git/config", "a/.swap", "a/text"]);
        let files = resolved(directory.path()).expect("files");
        assert_eq!(files, [directory.path().join("a/text")]);
    }

    #[cfg(unix)]
    #[test]
    fn links_to_files_count_and_links_to_directories_do_not() {
        use std::os::unix::fs::symlink;

        let (directory, other) = (tree(&["a/text"]), tree(&["elsewhere"]));
        let at = |name: &str| directory.path().join(name);
        symlink(directory.path(), at("a/loop")).expect("a link");
        symlink(other.path().join("elsewhere"), at("link")).expect("a link");
        symlink(at("nowhere"), at("dangling")).expect("a link");
        assert_eq!(resolved(directory.path()).expect("files"), [at("a/text"), at("link")]);
    }

    #[test]
    fn a_list_stands_for_its_lines_in_their_order() {
        let directory = tree(&["list"]);
        let list = directory.path().join("list");
        fs::write(&list, "/texts/b\n\n/texts/a b\r\nc").expect("a file");
        let files = resolve(&format!("@{}", list.display())).expect("files");
        assert_eq!(files, ["/texts/b", "/texts/a b", "c"].map(PathBuf::from));
    }

    #[test]
    fn what_is_missing_or_empty_is_named() {
        let directory = tree(&[".hidden"]);
        let error = resolved(directory.path()).expect_err("no files");
        assert!(matches!(&error, TextError::NoFiles { path } if path == directory.path()));

        let missing = directory.path().join("nowhere");
        let error = resolved(&missing).expect_err("no file");
        assert!(error.to_string().contains("nowhere"), "{error}");
        let error = resolve(&format!("@{}", missing.display())).expect_err("no list");
        assert!(matches!(&error, TextError::Missing { path } if *path == missing));
    }
}
