//! The client of a cloud's service. The environment alone configures it.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientOptions, Error, RetryConfig};

use super::{Bucket, Environment, Objects, Service, StoreError, words};

/// How long one request may take, its body included. A request has 8 MiB at most, unless a part
/// has an unusually long head.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the client repeats an unanswered or refused request. The callers of a store go on for
/// longer.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the client repeats one request, at most.
const MAX_RETRIES: usize = 8;

/// The client of a bucket.
pub(super) fn connect(
    bucket: &Bucket<'_>,
    environment: &Environment,
    place: &str,
) -> Result<Arc<dyn Objects>, StoreError> {
    let encryption = encryption(bucket.service, environment, place)?;
    let built: Result<Arc<dyn Objects>, Error> = match bucket.service {
        Service::S3 => s3(bucket, environment, encryption == Encryption::Plain),
        Service::Google => google(bucket, environment),
        Service::Azure => azure(bucket, environment),
    };
    built.map_err(|error| {
        let next = hint(bucket.service, environment).unwrap_or(variables(bucket.service));
        StoreError::refuse(place, format!("{}; {next}", words(&error)))
    })
}

/// What a person may do if a service refuses access. None if the environment has credentials.
pub(in crate::store) fn hint(service: Service, environment: &Environment) -> Option<&'static str> {
    let credentials: &[&str] = match service {
        Service::S3 => &[
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_SKIP_SIGNATURE",
        ],
        Service::Google => &[
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_SERVICE_ACCOUNT",
            "GOOGLE_SERVICE_ACCOUNT_PATH",
            "GOOGLE_SERVICE_ACCOUNT_KEY",
            "GOOGLE_BEARER_TOKEN",
            "GOOGLE_SKIP_SIGNATURE",
        ],
        Service::Azure => &[
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_ACCESS_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
            "AZURE_STORAGE_SAS_KEY",
            "AZURE_STORAGE_TOKEN",
            "AZURE_CLIENT_SECRET",
            "AZURE_FEDERATED_TOKEN_FILE",
        ],
    };
    let is_set = credentials.iter().any(|name| environment.value(name).is_some());
    (!is_set).then(|| variables(service))
}

fn variables(service: Service) -> &'static str {
    match service {
        Service::S3 => {
            "the environment has no credentials for S3: set AWS_ACCESS_KEY_ID, \
             AWS_SECRET_ACCESS_KEY and AWS_REGION, or run on a machine with a role for the bucket"
        }
        Service::Google => {
            "the environment has no credentials for Google Cloud: set \
             GOOGLE_APPLICATION_CREDENTIALS to the path of a key file, or run on a machine with a \
             service account for the bucket"
        }
        Service::Azure => {
            "the environment has no credentials for Azure: set AZURE_STORAGE_ACCOUNT_NAME and \
             AZURE_STORAGE_ACCOUNT_KEY, or run on a machine with an identity for the container"
        }
    }
}

/// Whether the bytes travel encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encryption {
    Tls,
    Plain,
}

/// Refuses an endpoint without encryption, unless the environment allows it.
fn encryption(
    service: Service,
    environment: &Environment,
    place: &str,
) -> Result<Encryption, StoreError> {
    let (names, allow): (&[&str], _) = match service {
        Service::S3 => {
            (&["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"], "AWS_ALLOW_HTTP")
        }
        Service::Google => (&["GOOGLE_BASE_URL"], "GOOGLE_ALLOW_HTTP"),
        Service::Azure => (&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"], "AZURE_ALLOW_HTTP"),
    };
    let is_plain = |value: &str| value.to_ascii_lowercase().starts_with("http://");
    let plain = names.iter().find(|name| environment.value(name).is_some_and(is_plain));
    match (plain, environment.value(allow)) {
        (None, _) => Ok(Encryption::Tls),
        (Some(_), Some("true" | "1")) => Ok(Encryption::Plain),
        (Some(name), _) => Err(StoreError::refuse(
            place,
            format!(
                "{name} begins with http://, so checkpoints would travel readable for all. Use \
                 https://, or set {allow}=true if the network is yours alone"
            ),
        )),
    }
}

fn s3(
    bucket: &Bucket<'_>,
    environment: &Environment,
    is_plain: bool,
) -> Result<Arc<dyn Objects>, Error> {
    let options = AmazonS3Builder::new().with_client_options(options()).with_retry(retry());
    let builder = settings::<AmazonS3ConfigKey>(environment, "AWS_")
        .fold(options, |builder, (key, value)| builder.with_config(key, value));
    let builder = builder
        .with_bucket_name(bucket.name)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        // TLS protects the bytes, and each shard has a digest: a third one costs a core.
        .with_unsigned_payload(!is_plain);
    Ok(Arc::new(builder.build()?))
}

fn google(bucket: &Bucket<'_>, environment: &Environment) -> Result<Arc<dyn Objects>, Error> {
    let options =
        GoogleCloudStorageBuilder::new().with_client_options(options()).with_retry(retry());
    let builder = settings::<GoogleConfigKey>(environment, "GOOGLE_")
        .fold(options, |builder, (key, value)| builder.with_config(key, value));
    Ok(Arc::new(builder.with_bucket_name(bucket.name).build()?))
}

fn azure(bucket: &Bucket<'_>, environment: &Environment) -> Result<Arc<dyn Objects>, Error> {
    let options = MicrosoftAzureBuilder::new().with_client_options(options()).with_retry(retry());
    let mut builder = settings::<AzureConfigKey>(environment, "AZURE_")
        .fold(options, |builder, (key, value)| builder.with_config(key, value));
    if let Some(endpoint) = environment.value("IDENTITY_ENDPOINT") {
        builder = builder.with_msi_endpoint(endpoint);
    }
    Ok(Arc::new(builder.with_container_name(bucket.name).build()?))
}

/// The settings that a service knows, by their variables.
fn settings<'a, K: FromStr>(
    environment: &'a Environment,
    prefix: &'a str,
) -> impl Iterator<Item = (K, &'a str)> {
    let known =
        |(name, value): (&str, &'a str)| Some((name.to_ascii_lowercase().parse().ok()?, value));
    environment.beginning(prefix).filter_map(known)
}

fn options() -> ClientOptions {
    ClientOptions::new().with_timeout(REQUEST_TIMEOUT)
}

fn retry() -> RetryConfig {
    let (max_retries, retry_timeout) = (MAX_RETRIES, RETRY_TIMEOUT);
    RetryConfig { max_retries, retry_timeout, ..RetryConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    fn refused(service: Service, variables: &[(&str, &str)]) -> String {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let bucket = Bucket { service, name: "bucket", prefix: "a" };
        match super::super::open(&bucket, &variables.collect()) {
            Ok(_) => String::new(),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Refuse);
                error.to_string()
            }
        }
    }

    #[test]
    fn plain_http_is_refused_unless_it_is_allowed() {
        let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
        let endpoint = ("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
        let told = refused(Service::S3, &[keys[0], keys[1], endpoint]);
        assert!(told.contains("set AWS_ALLOW_HTTP=true"), "{told}");
        let allowed = ("AWS_ALLOW_HTTP", "true");
        assert_eq!(refused(Service::S3, &[keys[0], keys[1], endpoint, allowed]), "");
        let told = refused(Service::Google, &[("GOOGLE_BASE_URL", "HTTP://127.0.0.1:1")]);
        assert!(told.contains("set GOOGLE_ALLOW_HTTP=true"), "{told}");
        let told = refused(Service::Azure, &[("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1")]);
        assert!(told.contains("set AZURE_ALLOW_HTTP=true"), "{told}");
    }

    #[test]
    fn missing_credentials_are_told_with_the_variables_to_set() {
        let told = refused(Service::Azure, &[]);
        assert!(told.contains("set AZURE_STORAGE_ACCOUNT_NAME"), "{told}");
        let told = refused(Service::S3, &[("AWS_ACCESS_KEY_ID", "a")]);
        assert!(told.contains("AWS_SECRET_ACCESS_KEY"), "{told}");
        // S3 and Google may give a machine a role, so the first request tells.
        assert_eq!(refused(Service::S3, &[]), "");
        let nothing = Environment::default();
        assert!(hint(Service::S3, &nothing).is_some_and(|it| it.contains("AWS_ACCESS_KEY_ID")));
        assert!(hint(Service::Google, &nothing).is_some_and(|it| it.contains("GOOGLE_APP")));
    }
}
