//! The check of a link that follows a refusal of its peer's port. Pure.
//!
//! A refusal is no proof. A firewall sends refusals for a living process, and any host can forge
//! one. So a refusal only begins a check. During the check the watcher sends a datagram on the link
//! that a living peer must acknowledge. Any packet that arrives on the link ends the check well.
//! The link ends when refusals go on and nothing arrives for the check's length.
//!
//! Input: refusals, and how many datagrams the link has received. Output: when to probe again, and
//! the link's end.

use std::time::Duration;

/// How often a check probes, and sends a datagram that a living peer acknowledges. A peer
/// acknowledges every second packet at once, so the delay of acknowledgements does not count.
const CHECK_PROBE_INTERVAL: Duration = Duration::from_millis(15);
/// The least length of a check. A living process may be held up for as long.
const CHECK_LENGTH_MIN: Duration = Duration::from_millis(45);
/// The length of a check in round trips: three of QUIC's probe time-outs, of two round trips each.
const CHECK_ROUND_TRIPS: u32 = 6;
/// Probes that must be refused during a check: a single refusal may be a stray. Kernels send only
/// some six refusals in a row to one host and then one a second, so more cannot be asked for.
const MIN_REFUSALS: u32 = 2;
/// A check without enough refusals ends after this time.
const CHECK_LENGTH_MAX: Duration = Duration::from_millis(1500);
/// A host that refuses all probes of living links is probed up to 2 to this power times less often.
const MAX_BACKOFF: u32 = 6;

/// The checks of one link.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The check under way, if there is one.
    check: Option<Check>,
    /// How many checks in a row ended well.
    passed: u32,
}

#[derive(Debug)]
struct Check {
    /// Datagrams that the link had received when the check began.
    received: u64,
    /// How long the check lasts.
    lasts: Duration,
    /// How many probes the peer's host refused.
    refusals: u32,
    /// Whether the newest probe was refused.
    is_refused: bool,
}

impl Checks {
    /// Takes note of a refused probe. Returns whether this begins a check.
    pub(super) fn refused(&mut self, received: u64) -> bool {
        match &mut self.check {
            Some(check) => {
                check.is_refused = true;
                false
            }
            None => {
                let lasts = Duration::ZERO;
                self.check = Some(Check { received, lasts, refusals: 0, is_refused: true });
                true
            }
        }
    }

    /// Judges the check after `elapsed` since the newest probe. Returns whether the link has to
    /// end.
    pub(super) fn judge(&mut self, elapsed: Duration, received: u64, rtt: Duration) -> bool {
        let Some(check) = &mut self.check else {
            self.passed = 0; // this probe was not refused
            return false;
        };
        if check.received != received {
            self.passed = self.passed.saturating_add(1);
            self.check = None;
            return false;
        }
        // A watcher that was itself held up could not hear the peer meanwhile.
        check.lasts += elapsed.min(2 * CHECK_PROBE_INTERVAL);
        check.refusals += u32::from(std::mem::take(&mut check.is_refused));
        let is_over = check.lasts >= CHECK_LENGTH_MIN.max(CHECK_ROUND_TRIPS * rtt);
        if is_over && check.refusals >= MIN_REFUSALS {
            return true;
        }
        if check.lasts >= CHECK_LENGTH_MAX.max(CHECK_ROUND_TRIPS * rtt) {
            self.check = None;
        }
        false
    }

    /// Whether a check is under way. The watcher then sends the peer something to acknowledge.
    pub(super) fn is_open(&self) -> bool {
        self.check.is_some()
    }

    /// How long to wait until the next probe: `interval` if the peer refuses none.
    pub(super) fn pause(&self, interval: Duration) -> Duration {
        match self.check {
            Some(_) => CHECK_PROBE_INTERVAL.min(interval),
            // The socket's buffer may still hold data of a killed process, so one check is no sign
            // yet.
            None => interval * (1 << self.passed.saturating_sub(1).min(MAX_BACKOFF)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE_INTERVAL: Duration = Duration::from_millis(25);
    const ROUND_TRIP_TIME: Duration = Duration::from_millis(1);

    /// Refuses every probe while the link receives `datagrams` a round. Returns how long the link
    /// took to end, if it ended within two seconds.
    fn refuse_all(checks: &mut Checks, datagrams: u64, rtt: Duration) -> Option<Duration> {
        let (mut time, mut received) = (Duration::ZERO, 7);
        while time < Duration::from_secs(2) {
            checks.refused(received);
            let pause = checks.pause(PROBE_INTERVAL);
            (time, received) = (time + pause, received + datagrams);
            if checks.judge(pause, received, rtt) {
                return Some(time);
            }
        }
        None
    }

    #[test]
    fn a_link_that_receives_nothing_while_its_peer_is_refused_ends_soon() {
        let end = refuse_all(&mut Checks::default(), 0, ROUND_TRIP_TIME).expect("it ends");
        assert!(
            (CHECK_LENGTH_MIN..=CHECK_LENGTH_MIN + CHECK_PROBE_INTERVAL).contains(&end),
            "{end:?}"
        );
        let far = Duration::from_millis(50);
        let end = refuse_all(&mut Checks::default(), 0, far).expect("it ends");
        assert!(end >= CHECK_ROUND_TRIPS * far, "{end:?} is less than three probe time-outs");
    }

    #[test]
    fn a_link_that_receives_anything_lives_however_often_it_is_refused() {
        assert_eq!(refuse_all(&mut Checks::default(), 1, ROUND_TRIP_TIME), None);
    }

    #[test]
    fn a_single_refusal_ends_no_link() {
        let mut checks = Checks::default();
        assert!(checks.refused(7), "a check begins");
        for _ in 0..1000 {
            assert!(!checks.judge(checks.pause(PROBE_INTERVAL), 7, ROUND_TRIP_TIME));
        }
        assert!(!checks.is_open(), "a check does not go on for ever");
    }

    /// A kernel sends a few refusals at once, which other packets may use up, and then one a
    /// second.
    #[test]
    fn two_refusals_a_second_apart_suffice() {
        let (mut checks, mut time) = (Checks::default(), Duration::ZERO);
        let mut refused_at = Duration::ZERO;
        while time < Duration::from_secs(2) {
            if time >= refused_at {
                checks.refused(7);
                refused_at = time + Duration::from_secs(1);
            }
            let pause = checks.pause(PROBE_INTERVAL);
            time += pause;
            if checks.judge(pause, 7, ROUND_TRIP_TIME) {
                return;
            }
        }
        panic!("the link lives on");
    }

    #[test]
    fn a_watcher_that_was_held_up_goes_on_listening() {
        let mut checks = Checks::default();
        checks.refused(7);
        assert!(!checks.judge(Duration::from_secs(10), 7, ROUND_TRIP_TIME));
        checks.refused(7);
        assert!(!checks.judge(Duration::ZERO, 7, ROUND_TRIP_TIME), "it had no time to hear");
        assert!(!checks.judge(CHECK_PROBE_INTERVAL, 8, ROUND_TRIP_TIME) && !checks.is_open());
    }

    #[test]
    fn a_host_that_always_refuses_is_probed_less_and_less_and_then_as_before() {
        let mut checks = Checks::default();
        let mut pauses = Vec::new();
        for received in 0..10 {
            checks.refused(received);
            assert!(!checks.judge(CHECK_PROBE_INTERVAL, received + 1, ROUND_TRIP_TIME));
            pauses.push(checks.pause(PROBE_INTERVAL));
        }
        assert!(pauses.is_sorted() && pauses[0] == PROBE_INTERVAL, "{pauses:?}");
        assert_eq!(pauses[9], PROBE_INTERVAL * 64);
        assert!(!checks.judge(pauses[9], 10, ROUND_TRIP_TIME)); // a probe that was taken
        assert_eq!(checks.pause(PROBE_INTERVAL), PROBE_INTERVAL);
    }
}
