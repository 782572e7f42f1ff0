//! What each cloud's metadata service is asked.
//!
//! Sources: the clouds' manuals on interruption notices of Spot Instances and IMDSv2 (EC2), on
//! preemption of Spot VMs (Compute Engine), and on Scheduled Events (Azure).

use bytes::Bytes;
use everstep_transport::protocol::Cloud;
use http_body_util::Empty;
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request};

use super::MetadataService;
use super::fate::{AnswerError, Fate, of_aws, of_azure, of_gcp};
use super::http::{ExchangeError, exchange};

const AWS_TOKEN: &str = "/latest/api/token";
const AWS_ACTION: &str = "/latest/meta-data/spot/instance-action";
const GCP_PREEMPTED: &str = "/computeMetadata/v1/instance/preempted";
const AZURE_NAME: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
const AZURE_EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";

/// Why the service says nothing of the machine's fate.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// No whole answer in time.
    #[error("it does not answer in time")]
    Slow,
    /// The service gave no whole answer.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// An answer without a meaning.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// A name or a token that is none.
    #[error("its {0} is not usable")]
    Word(&'static str),
}

/// The header without which a service does not answer.
struct RequestHeader {
    name: &'static str,
    value: HeaderValue,
}

impl RequestHeader {
    fn of(name: &'static str, value: &'static str) -> Self {
        Self { name, value: HeaderValue::from_static(value) }
    }
}

/// A client of one service.
pub struct Client {
    service: MetadataService,
    /// The session token of EC2's metadata service.
    token: Option<HeaderValue>,
    /// The machine's name in Azure's events.
    machine: Option<String>,
}

impl Client {
    pub fn new(service: MetadataService) -> Self {
        Self { service, token: None, machine: None }
    }

    /// Asks once what becomes of the machine.
    pub async fn ask(&mut self) -> Result<Fate, ServiceError> {
        match self.service.cloud {
            Cloud::Aws => self.ask_aws().await,
            Cloud::Gcp => self.ask_gcp().await,
            Cloud::Azure => self.ask_azure().await,
        }
    }

    /// A token that has expired (401) is drawn anew with the next question.
    async fn ask_aws(&mut self) -> Result<Fate, ServiceError> {
        let token = match self.token.clone() {
            Some(token) => token,
            None => self.draw_token().await?,
        };
        let token = RequestHeader { name: "x-aws-ec2-metadata-token", value: token };
        let (status, body) = self.send(Method::GET, AWS_ACTION, token).await?;
        if status == 401 {
            self.token = None;
        }
        Ok(of_aws(status, &body)?)
    }

    async fn draw_token(&mut self) -> Result<HeaderValue, ServiceError> {
        let hours = RequestHeader::of("x-aws-ec2-metadata-token-ttl-seconds", "21600");
        let body = self.fetch(Method::PUT, AWS_TOKEN, hours).await?;
        let token = HeaderValue::from_bytes(body.trim_ascii());
        let token = token.map_err(|_| ServiceError::Word("session token"))?;
        self.token = Some(token.clone());
        Ok(token)
    }

    async fn ask_gcp(&self) -> Result<Fate, ServiceError> {
        let flavor = RequestHeader::of("metadata-flavor", "Google");
        let (status, body) = self.send(Method::GET, GCP_PREEMPTED, flavor).await?;
        Ok(of_gcp(status, &body)?)
    }

    async fn ask_azure(&mut self) -> Result<Fate, ServiceError> {
        let metadata = || RequestHeader::of("metadata", "true");
        let machine = match self.machine.clone() {
            Some(machine) => machine,
            None => {
                let body = self.fetch(Method::GET, AZURE_NAME, metadata()).await?;
                let name = str::from_utf8(body.trim_ascii()).ok().filter(|name| !name.is_empty());
                name.ok_or(ServiceError::Word("name of this machine"))?.to_string()
            }
        };
        self.machine = Some(machine.clone());
        let (status, body) = self.send(Method::GET, AZURE_EVENTS, metadata()).await?;
        Ok(of_azure(status, &body, &machine)?)
    }

    /// The body of an answer with the status 200.
    async fn fetch(
        &self,
        method: Method,
        path: &'static str,
        header: RequestHeader,
    ) -> Result<Bytes, ServiceError> {
        match self.send(method, path, header).await? {
            (200, body) => Ok(body),
            (status, _) => Err(AnswerError::Status(status).into()),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &'static str,
        header: RequestHeader,
    ) -> Result<(u16, Bytes), ExchangeError> {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = method;
        *request.uri_mut() = hyper::Uri::from_static(path);
        request.headers_mut().insert(header.name, header.value);
        request.headers_mut().insert(HOST, HeaderValue::from_static(host(self.service.cloud)));
        exchange(&self.service.place, request).await
    }
}

/// The name by which a cloud's service knows itself.
fn host(cloud: Cloud) -> &'static str {
    match cloud {
        Cloud::Gcp => "metadata.google.internal",
        Cloud::Aws | Cloud::Azure => "169.254.169.254",
    }
}

#[cfg(test)]
mod tests;
