//! A coordinator's own certificate, which is as short-lived as any node's. The coordinator has the
//! authority's key, and makes itself a newer one long before the end, whether or not it has links.

use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::{Authority, Credentials, NODE_LIFETIME};
use everstep_transport::quic::Endpoint;
use tokio::time::sleep;

/// How often the task looks at the wall clock. A monotonic clock stands still while a machine is
/// suspended, and may say too late that a certificate is due.
pub(super) const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Presents a newer certificate whenever `are_due` says that the present one is due. Runs until
/// dropped.
pub(super) async fn run(
    endpoint: Arc<Endpoint>,
    authority: Arc<Authority>,
    pause: Duration,
    are_due: impl Fn(&Credentials) -> bool,
) {
    loop {
        sleep(pause).await;
        if !are_due(&endpoint.credentials()) {
            continue;
        }
        let identity = endpoint.credentials().identity().clone();
        let newer = authority.issue(&identity, NODE_LIFETIME).map_err(|error| error.to_string());
        let presented =
            newer.and_then(|newer| endpoint.renew(&newer).map_err(|error| error.to_string()));
        match presented {
            Ok(()) => tracing::info!("a newer certificate is presented"),
            Err(error) => tracing::error!(error, "there is no newer certificate"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use everstep_transport::identity::{Identity, Role, UnixTime};
    use everstep_transport::protocol::NodeName;
    use everstep_transport::quic::Settings;
    use tokio::time::timeout;

    use super::*;

    /// An endpoint with credentials of this authority.
    fn presenting(authority: &Authority) -> (Arc<Endpoint>, Credentials) {
        let name = NodeName::parse("coordinator-1").expect("a valid name");
        let identity = Identity { role: Role::Coordinator, name };
        let credentials = authority.issue(&identity, NODE_LIFETIME).expect("credentials");
        let listen = ([127, 0, 0, 1], 0).into();
        let settings = Settings::for_address([127, 0, 0, 1].into());
        let endpoint = Endpoint::bind(listen, &credentials, settings, None).expect("bound");
        (Arc::new(endpoint), credentials)
    }

    /// The machine was suspended: its wall clock jumps, and no other clock does.
    #[tokio::test]
    async fn a_certificate_is_renewed_soon_after_the_wall_clock_has_jumped() {
        let authority = Arc::new(Authority::create().expect("an authority"));
        let (endpoint, first) = presenting(&authority);
        let clock = Arc::new(AtomicU64::new(UnixTime::now().as_secs()));
        let read = clock.clone();
        let are_due = move |held: &Credentials| {
            let now = Duration::from_secs(read.load(Ordering::Relaxed));
            held.are_due(UnixTime::since_unix_epoch(now))
        };
        let pause = Duration::from_millis(1);
        let renewals = tokio::spawn(run(endpoint.clone(), authority, pause, are_due));
        sleep(50 * pause).await;
        assert_eq!(endpoint.credentials().chain(), first.chain());
        clock.fetch_add(NODE_LIFETIME.as_secs(), Ordering::Relaxed);
        let renewed = async {
            while endpoint.credentials().chain() == first.chain() {
                sleep(pause).await;
            }
        };
        timeout(Duration::from_secs(60), renewed).await.expect("it is renewed");
        renewals.abort();
    }

    #[tokio::test]
    async fn what_is_presented_is_renewed_again_and_again() {
        let authority = Arc::new(Authority::create().expect("an authority"));
        let (endpoint, credentials) = presenting(&authority);
        let renewals = run(endpoint.clone(), authority, Duration::from_millis(1), |_| true);
        let newer = async |than: Vec<_>| {
            while endpoint.credentials().chain() == than {
                tokio::task::yield_now().await;
            }
            endpoint.credentials().chain()
        };
        let renewed = async {
            let second = newer(credentials.chain()).await;
            newer(second).await
        };
        tokio::select! {
            () = renewals => unreachable!("it has no end"),
            third = renewed => assert_ne!(third, credentials.chain()),
        }
        assert_eq!(endpoint.credentials().identity(), credentials.identity());
    }
}
