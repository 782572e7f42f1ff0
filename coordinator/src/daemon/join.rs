//! How a coordinator joins a cluster: once in the life of its directory.
//!
//! With its token it gets a certificate, and over a link that proves that, the cluster's keys:
//! these are its own from then on, and so is its name ([`adopt`]). Then it asks the one who leads
//! to be one of the coordinators, and is told its id and who the others are ([`ask`]). If that
//! breaks off it may be done again: for the same directory the id is the same.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use everstep_transport::identity::{JoinToken, Role};
use everstep_transport::protocol::{CoordinatorId, CoordinatorView, Keys, Message};
use everstep_transport::quic::{ConnectError, Endpoint, Expected, Link, Settings, enrol};
use tokio::time::{Instant, sleep, timeout};

use super::CoordinatorError;
#[cfg(feature = "failpoints")]
use super::failpoint;
use super::files::{Cluster, refuse_existing};
use crate::state;

/// How long coordinators are asked before it gives up.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one of them may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

/// The directory of a coordinator that has the cluster's keys: the one that is there, if it was
/// to join already and has not yet, or a new one.
pub(super) async fn adopt(
    dir: PathBuf,
    token: &str,
    coordinators: &[SocketAddr],
    here: IpAddr,
) -> Result<Cluster, CoordinatorError> {
    let token: JoinToken = token.parse()?;
    if let Err(existing) = refuse_existing(&dir) {
        return match Cluster::load(dir) {
            Ok(cluster) if cluster.id().is_none() => Ok(cluster),
            _ => Err(existing),
        };
    }
    let began = Instant::now();
    loop {
        let mut last = CoordinatorError::Unanswered("none was named".into());
        for address in coordinators {
            let enrolled = enrol(*address, &token, Role::Coordinator).await;
            let credentials = match enrolled {
                Ok(credentials) => credentials,
                Err(error) if error.may_pass() => {
                    last = error.into();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            #[cfg(feature = "failpoints")]
            failpoint::on_stage("enrolled");
            let settings = Settings::for_address(here);
            let endpoint = Endpoint::bind((here, 0).into(), &credentials, settings, None)?;
            match fetch_keys(&endpoint, *address).await {
                Ok(keys) => {
                    #[cfg(feature = "failpoints")]
                    failpoint::on_stage("keyed");
                    return Cluster::adopt(dir, &credentials, &keys);
                }
                Err(reason) => last = CoordinatorError::Unanswered(reason),
            }
        }
        if began.elapsed() > PATIENCE {
            return Err(last);
        }
        sleep(PAUSE).await;
    }
}

async fn fetch_keys(endpoint: &Endpoint, address: SocketAddr) -> Result<Keys, String> {
    let link = connect(endpoint, address).await?;
    link.send(Message::FetchKeys).map_err(|error| error.to_string())?;
    let heard = hear(&link, |message| match message {
        Message::Keys(keys) => Some(keys),
        _ => None,
    });
    heard.await
}

/// Asks to be one of the coordinators; returns its id when its directory is ready for that.
pub(super) async fn ask(
    endpoint: &Endpoint,
    cluster: &mut Cluster,
    own: &state::Coordinator,
    named: &[SocketAddr],
) -> Result<CoordinatorId, CoordinatorError> {
    let began = Instant::now();
    let mut reason = String::from("none was named");
    loop {
        let known = cluster.book.content().members.iter().map(|view| view.address);
        let places: Vec<SocketAddr> = known.chain(named.iter().copied()).collect();
        for address in places {
            match ask_at(endpoint, address, own).await {
                Ok(Answer { revision, members, id }) => {
                    cluster.book.heard(revision, members)?;
                    if let Some(id) = id {
                        #[cfg(feature = "failpoints")]
                        failpoint::on_stage("told");
                        cluster.admitted(id)?;
                        #[cfg(feature = "failpoints")]
                        failpoint::on_stage("admitted");
                        return Ok(id);
                    }
                    reason = format!("{address} does not lead");
                }
                Err(failure) => reason = format!("{address}: {failure}"),
            }
        }
        if began.elapsed() > PATIENCE {
            return Err(CoordinatorError::Unanswered(reason));
        }
        sleep(PAUSE).await;
    }
}

/// What a coordinator has answered.
struct Answer {
    revision: u64,
    members: Vec<CoordinatorView>,
    /// None if it does not lead.
    id: Option<CoordinatorId>,
}

async fn ask_at(
    endpoint: &Endpoint,
    address: SocketAddr,
    own: &state::Coordinator,
) -> Result<Answer, String> {
    let link = connect(endpoint, address).await?;
    let state::Coordinator { incarnation, address, api, .. } = *own;
    let join = Message::Join { id: None, incarnation, address, api };
    link.send(join).map_err(|error| error.to_string())?;
    let mut answer = Answer { revision: 0, members: Vec::new(), id: None };
    // It tells who the coordinators are whenever that changes; one that does not lead, once.
    let heard = hear(&link, |message| match message {
        Message::Coordinators { revision, members, leader, .. } => {
            let there = members.iter().find(|view| view.address == link.remote_address());
            let leads = there.is_some_and(|view| leader == Some(view.id));
            (answer.revision, answer.members) = (revision, members);
            (!leads).then_some(())
        }
        Message::Joined { id } => {
            answer.id = Some(id);
            Some(())
        }
        _ => None,
    });
    heard.await?;
    Ok(answer)
}

async fn connect(endpoint: &Endpoint, address: SocketAddr) -> Result<Link, String> {
    let expected = Expected::Role(Role::Coordinator);
    let link = timeout(ANSWER, endpoint.connect(address, &expected)).await;
    let link = link.unwrap_or(Err(ConnectError::NoAnswer { address }));
    link.map_err(|error| error.to_string())
}

/// Waits for an answer among all that is said.
async fn hear<T>(link: &Link, mut wanted: impl FnMut(Message) -> Option<T>) -> Result<T, String> {
    let heard = async {
        loop {
            let message = link.receive().await.map_err(|error| error.to_string())?;
            if let Some(answer) = wanted(message) {
                return Ok(answer);
            }
        }
    };
    timeout(ANSWER, heard).await.unwrap_or_else(|_| Err("it does not answer".into()))
}
