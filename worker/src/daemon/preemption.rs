//! Whether the worker's cloud takes the machine back: a task asks the cloud's metadata service.
//!
//! The service is bytes of another system. Nothing that it answers, and no silence of it, ends the
//! worker: an answer that says nothing is one line of the log. `fate` has the rules, `service` what
//! each cloud is asked, `http` the exchange.

mod fate;
mod http;
mod service;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use everstep_transport::protocol::{Cloud, PreemptionNotice};
use everstep_transport::quic::HostPort;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

pub use self::fate::{Fate, FateChange, FateWatch};
use self::service::{Client, ServiceError};

/// How often the service is asked. The shortest notice of a cloud comes 30 s ahead.
pub const PREEMPTION_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The service of a cloud that tells a machine what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataService {
    /// The cloud, which decides what is asked.
    pub cloud: Cloud,
    /// The place of the service.
    pub place: HostPort,
}

/// A cloud takes the machine back.
#[derive(Clone, Copy, Debug)]
pub struct Notice {
    /// The cloud, and the time that is left.
    pub preemption: PreemptionNotice,
    /// When the worker leaves, even with the last copy of a shard.
    pub leave_at: Instant,
}

/// Begins to ask the service. The receiver has the notice that is in force. Without a service there
/// is never one.
pub fn notices(service: Option<MetadataService>) -> watch::Receiver<Option<Notice>> {
    let (told, notices) = watch::channel(None);
    if let Some(service) = service {
        actix::spawn(run(service, told));
    }
    notices
}

async fn run(service: MetadataService, told: watch::Sender<Option<Notice>>) {
    let MetadataService { cloud, ref place } = service;
    let (name, place) = (cloud.name(), place.to_string());
    tracing::info!(cloud = name, %place, "asks the cloud's metadata service for preemptions");
    let mut client = Client::new(service);
    let mut known = FateWatch::new(cloud);
    let mut was_answered = true;
    loop {
        let answer = timeout(ANSWER_TIMEOUT, client.ask()).await;
        let answer = answer.unwrap_or(Err(ServiceError::Slow));
        let is_answered = answer.is_ok();
        match answer {
            Ok(fate) => match known.take(unix_s(), fate) {
                Some(change) => _ = told.send_replace(tell(cloud, change)),
                None if !was_answered => {
                    tracing::info!(cloud = name, "the cloud's metadata service answers again");
                }
                None => {}
            },
            Err(error) if was_answered => {
                let next = "the worker trains on and asks again. No notice of the cloud drains it \
                            meanwhile. Check --preemption and --metadata-url";
                tracing::warn!(
                    cloud = name, %place, %error, next,
                    "the cloud's metadata service says nothing of preemptions"
                );
            }
            Err(_) => {}
        }
        was_answered = is_answered;
        sleep(PREEMPTION_POLL_INTERVAL).await;
    }
}

/// Logs what the cloud has said. Returns the notice, if one is in force.
fn tell(cloud: Cloud, change: FateChange) -> Option<Notice> {
    let name = cloud.name();
    match change {
        FateChange::TakenBack { left, leave_after } => {
            let preemption = PreemptionNotice::until(cloud, left);
            let seconds_left = preemption.seconds_left;
            tracing::warn!(cloud = name, seconds_left, "the cloud takes this machine back");
            Some(Notice { preemption, leave_at: Instant::now() + leave_after })
        }
        FateChange::Withdrawn => {
            let next = "the worker leaves in good order all the same, without a limit of time";
            tracing::warn!(cloud = name, next, "the cloud has withdrawn its notice");
            None
        }
    }
}

/// The wall clock, seconds of Unix time.
fn unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}
