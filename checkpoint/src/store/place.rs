//! Where a store is: a directory, or a URL of an object store.
//!
//! A place comes from a configuration file or a command line. It names no credentials: they come
//! from the [`Environment`] alone, so no specification, log or listing ever contains them.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::PathBuf;
use std::str::FromStr;

use super::directory::DirectoryStore;
use super::{Store, StoreError};
use crate::names::shown;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory of this machine, or one that it mounts.
    Directory(PathBuf),
    /// A prefix of a bucket.
    Bucket {
        /// The service, by the scheme of the URL.
        service: Service,
        /// The bucket, which Azure calls a container.
        bucket: String,
        /// Folders in the bucket, without slashes at the ends. Empty for the whole bucket.
        prefix: String,
    },
}

/// A service that keeps objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `s3://`: Amazon S3, and whatever speaks its protocol at `AWS_ENDPOINT_URL`.
    S3,
    /// `gs://`: Google Cloud Storage.
    Google,
    /// `az://`: Azure Blob Storage.
    Azure,
}

impl Service {
    const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];

    /// The scheme of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }
}

/// Opens the store at a place. An object store is not asked anything yet: see
/// [`probe`](super::probe::probe).
///
/// # Errors
/// If the directory cannot be made, or the environment does not say how to reach the object store.
pub fn open(place: &Place, environment: &Environment) -> Result<Box<dyn Store>, StoreError> {
    match place {
        Place::Directory(path) => Ok(Box::new(DirectoryStore::open(path)?)),
        #[cfg(feature = "cloud")]
        Place::Bucket { service, bucket, prefix } => {
            let bucket = super::cloud::Bucket { service: *service, name: bucket, prefix };
            Ok(Box::new(super::cloud::open(&bucket, environment)?))
        }
        #[cfg(not(feature = "cloud"))]
        Place::Bucket { .. } => {
            let _ = environment;
            let why = "this program was built without object stores. Name a directory, or build it \
                       with the feature \"cloud\"";
            Err(StoreError::refuse(place.to_string(), why))
        }
    }
}

/// The variables to set where the environment has no credentials for a place, in words. None if it
/// has some, or needs none. A machine without them may have a role for the bucket all the same.
pub fn missing_credentials(place: &Place, environment: &Environment) -> Option<&'static str> {
    match place {
        #[cfg(feature = "cloud")]
        Place::Bucket { service, .. } => super::cloud::connect::hint(*service, environment),
        _ => {
            let _ = environment;
            None
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Bucket { service, bucket, prefix } => {
                let slash = if prefix.is_empty() { "" } else { "/" };
                write!(f, "{}://{bucket}{slash}{prefix}", service.scheme())
            }
        }
    }
}

impl FromStr for Place {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            if text.is_empty() || text.contains('\0') {
                return Err(StoreError::refuse(shown(text), "name a directory or a URL"));
            }
            return Ok(Self::Directory(text.into()));
        };
        // The message repeats no URL that may contain a password.
        let refuse = |why: &str| Err(StoreError::refuse(format!("{}://…", shown(scheme)), why));
        let Some(service) = Service::ALL.into_iter().find(|it| it.scheme() == scheme) else {
            return refuse(
                "there are no stores of this scheme. Use a directory, or s3://BUCKET/FOLDER, \
                 gs://BUCKET/FOLDER or az://CONTAINER/FOLDER",
            );
        };
        if rest.contains(['@', '?', '#']) {
            return refuse(
                "a store's URL is SCHEME://BUCKET/FOLDER without credentials and options. Set \
                 those in the environment",
            );
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-=+".contains(&byte);
        let is_bucket = (3..=222).contains(&bucket.len())
            && bucket.bytes().all(|byte| is_plain(byte) && byte != b'=' && byte != b'+');
        if !is_bucket || bucket.starts_with('.') {
            return refuse("a bucket's name has 3 to 222 letters, digits, dots and hyphens");
        }
        let is_folder =
            |it: &str| !it.is_empty() && it.bytes().all(is_plain) && !it.starts_with('.');
        if !prefix.is_empty() && (prefix.len() > 512 || !prefix.split('/').all(is_folder)) {
            return refuse("a folder's name has letters, digits, and the characters ._-=+");
        }
        Ok(Self::Bucket { service, bucket: bucket.into(), prefix: prefix.into() })
    }
}

/// The variables that say how to reach object stores, secrets among them. It has no `Debug`, so no
/// log ever contains it.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process that a store may read: those that begin with `AWS_`, `GOOGLE_`
    /// or `AZURE_`, and `IDENTITY_ENDPOINT`.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        std::env::vars_os().filter_map(text).collect()
    }

    /// The value of a variable. An empty one counts as none.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The variables that begin with this.
    pub fn beginning<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let variables = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        variables.filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(variables: T) -> Self {
        let begins = |name: &str| {
            ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.starts_with(prefix))
                || name == "IDENTITY_ENDPOINT"
        };
        Self(variables.into_iter().filter(|(name, _)| begins(name)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(service: Service, bucket: &str, prefix: &str) -> Place {
        Place::Bucket { service, bucket: bucket.into(), prefix: prefix.into() }
    }

    #[test]
    fn places_by_table() {
        for (text, place) in [
            ("s3://my-bucket", bucket(Service::S3, "my-bucket", "")),
            ("s3://my-bucket/runs/r1/", bucket(Service::S3, "my-bucket", "runs/r1")),
            ("gs://my.bucket/a", bucket(Service::Google, "my.bucket", "a")),
            ("az://box/a/b=1", bucket(Service::Azure, "box", "a/b=1")),
            ("checkpoints", Place::Directory("checkpoints".into())),
            ("/srv/../x", Place::Directory("/srv/../x".into())),
        ] {
            assert_eq!(text.parse(), Ok(place.clone()), "{text}");
            assert_eq!(place.to_string().parse(), Ok(place), "{text}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused_with_what_to_do() {
        for (text, words) in [
            ("ftp://host/a", "Use a directory, or s3://BUCKET/FOLDER"),
            ("http://host/a", "Use a directory, or s3://BUCKET/FOLDER"),
            ("s3://key:secret@bucket/a", "Set those in the environment"),
            ("s3://bucket/a?token=secret", "Set those in the environment"),
            ("s3://", "a bucket's name has"),
            ("s3://ab/c", "a bucket's name has"),
            ("s3://bucket/../other", "a folder's name has"),
            ("s3://bucket//a", "a folder's name has"),
            ("s3://bucket/a b", "a folder's name has"),
            ("", "name a directory or a URL"),
        ] {
            let error = text.parse::<Place>().expect_err(text);
            assert!(error.why.contains(words), "{text}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[cfg(not(feature = "cloud"))]
    #[test]
    fn a_build_without_object_stores_says_so() {
        let place = "s3://bucket/a".parse().expect("a place");
        let error = open(&place, &Environment::default()).err().expect("refused");
        assert!(error.why.contains("the feature \"cloud\""), "{error}");
    }
}
