//! The check of a link that follows a refusal of its peer's port. Pure.
//!
//! A refusal is no proof. A firewall sends refusals for a living process, and any host can forge
//! one. So a refusal only begins a check. During the check the watcher sends a datagram on the link
//! that a living peer must acknowledge. Any packet that arrives on the link ends the check well.
//! The link ends when refusals go on and nothing arrives for the check's length.
//!
//! A killed process is noticed soon, so a check is short: a living peer that is held up for so long
//! and is refused at the same time is taken for dead. Where a standing firewall refuses the probes
//! of a living peer, every pause of the peer would end the link. So a packet that arrives long
//! after the first refusal shows that refusals are wrong. From then on a check lasts as long as a
//! coordinator waits for a silent worker, also on later links with the same
//! [peer](super::distrusted). Kernels limit how often they refuse, so a probe without an answer
//! does not show that the firewall is gone. Only a long time without a refusal does.
//!
//! Input: refusals, and how many datagrams the link has received. Output: when to judge again, and
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
/// A check without enough refusals ends this long after its least length.
const CHECK_OVERTIME: Duration = Duration::from_millis(1500);
/// The least length of a check where refusals have been wrong.
const DISTRUSTFUL_CHECK_LENGTH: Duration = Duration::from_secs(2);
/// A packet that arrives this long after the first refusal is no leftover of a killed process: the
/// socket's buffer is read much sooner.
const LEFTOVERS_READ_WITHIN: Duration = Duration::from_millis(250);
/// After this time without a refusal, refusals count again as on a new link.
pub(super) const REFUSALS_FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Where a host refuses all probes of living links, checks begin up to 2 to this power times less
/// often than probes are sent.
const MAX_BACKOFF: u32 = 6;

/// The checks of one link, each begun by a refusal of the peer's port: whether the peer lives, and
/// whether refusals on this link are wrong.
#[derive(Debug, Default)]
pub struct RefusalChecks {
    /// The check under way, if there is one.
    check: Option<Check>,
    /// How many checks ended well since the first refusal that is not forgotten.
    passed: u32,
    /// Whether one of them showed that refusals on this link are wrong.
    are_wrong: bool,
    /// The time since that first refusal, without spans in which the watcher was held up.
    since_first: Duration,
    /// The time since the newest refusal.
    since_newest: Duration,
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

impl RefusalChecks {
    /// Takes note of a refused probe. Returns whether this begins a check.
    pub fn refused(&mut self, received: u64) -> bool {
        self.since_newest = Duration::ZERO;
        if self.passed == 0 && self.check.is_none() {
            self.since_first = Duration::ZERO;
        }
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

    /// Judges the check after `elapsed` since the round began. Returns whether the link has to
    /// end.
    pub fn judge(&mut self, elapsed: Duration, received: u64, rtt: Duration) -> bool {
        self.since_newest = self.since_newest.saturating_add(elapsed);
        let Some(check) = &mut self.check else {
            self.since_first = self.since_first.saturating_add(elapsed);
            if self.since_newest >= REFUSALS_FORGOTTEN_AFTER {
                *self = Self::default();
            }
            return false;
        };
        // A watcher that was itself held up could not hear the peer meanwhile. What it reads then
        // may have come long before.
        let listened = elapsed.min(2 * CHECK_PROBE_INTERVAL);
        self.since_first = self.since_first.saturating_add(listened);
        if check.received != received {
            self.passed = self.passed.saturating_add(1);
            self.are_wrong |= self.since_first >= LEFTOVERS_READ_WITHIN;
            self.check = None;
            return false;
        }
        check.lasts += listened;
        check.refusals += u32::from(std::mem::take(&mut check.is_refused));
        let least = if self.are_wrong { DISTRUSTFUL_CHECK_LENGTH } else { CHECK_LENGTH_MIN };
        let least = least.max(CHECK_ROUND_TRIPS * rtt);
        if check.lasts >= least && check.refusals >= MIN_REFUSALS {
            return true;
        }
        if check.lasts >= least + CHECK_OVERTIME {
            self.check = None;
        }
        false
    }

    /// An earlier link with the peer has shown that its refusals are wrong.
    pub fn distrust(&mut self) {
        self.are_wrong = true;
    }

    /// Whether refusals on this link are known to be wrong.
    pub(super) fn are_wrong(&self) -> bool {
        self.are_wrong
    }

    /// Whether a check is under way. The watcher then sends the peer something to acknowledge.
    pub fn is_open(&self) -> bool {
        self.check.is_some()
    }

    /// How long to wait until the next judgement: `interval` if the peer refuses no probe.
    pub fn pause(&self, interval: Duration) -> Duration {
        match self.check {
            Some(_) => CHECK_PROBE_INTERVAL.min(interval),
            // The socket's buffer may still hold data of a killed process, so one check is no sign
            // yet.
            None => interval * (1 << self.passed.saturating_sub(1).min(MAX_BACKOFF)),
        }
    }

    /// How long after its begin a round gives way to the next, at the least. Where refusals are
    /// wrong, a check that ended well is not followed by another one at once.
    pub(super) fn rest(&self, interval: Duration) -> Duration {
        match self.are_wrong {
            true => self.pause(interval),
            false => Duration::ZERO,
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
    fn refuse_all(checks: &mut RefusalChecks, datagrams: u64, rtt: Duration) -> Option<Duration> {
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
        let end = refuse_all(&mut RefusalChecks::default(), 0, ROUND_TRIP_TIME).expect("it ends");
        assert!(
            (CHECK_LENGTH_MIN..=CHECK_LENGTH_MIN + CHECK_PROBE_INTERVAL).contains(&end),
            "{end:?}"
        );
        let far = Duration::from_millis(50);
        let end = refuse_all(&mut RefusalChecks::default(), 0, far).expect("it ends");
        assert!(end >= CHECK_ROUND_TRIPS * far, "{end:?} is less than three probe time-outs");
    }

    #[test]
    fn a_link_that_receives_anything_lives_however_often_it_is_refused() {
        assert_eq!(refuse_all(&mut RefusalChecks::default(), 1, ROUND_TRIP_TIME), None);
    }

    #[test]
    fn a_single_refusal_ends_no_link() {
        let mut checks = RefusalChecks::default();
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
        let (mut checks, mut time) = (RefusalChecks::default(), Duration::ZERO);
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
        let mut checks = RefusalChecks::default();
        checks.refused(7);
        assert!(!checks.judge(Duration::from_secs(10), 7, ROUND_TRIP_TIME));
        checks.refused(7);
        assert!(!checks.judge(Duration::ZERO, 7, ROUND_TRIP_TIME), "it had no time to hear");
        assert!(!checks.judge(CHECK_PROBE_INTERVAL, 8, ROUND_TRIP_TIME) && !checks.is_open());
    }

    /// How a peer answers: which probes its host refuses, and when a packet comes from it.
    struct Peer {
        /// Refusals that the host may send at once, of at most six. It gets one more a second.
        /// `None`: it refuses every probe.
        credit: Option<f64>,
        /// The peer sends nothing from the first time on until the second.
        silent: [Duration; 2],
    }

    const NEVER: [Duration; 2] = [Duration::MAX; 2];

    impl Peer {
        fn refuses(&mut self) -> bool {
            let Some(credit) = &mut self.credit else { return true };
            let refuses = *credit >= 1.0;
            *credit -= f64::from(u8::from(refuses));
            refuses
        }

        fn wait(&mut self, pause: Duration) {
            self.credit = self.credit.map(|credit| (credit + pause.as_secs_f64()).min(6.0));
        }

        /// Packets that have come by this time: one every 5 ms.
        fn received(&self, time: Duration) -> u64 {
            let [from, until] = self.silent;
            let heard = time.min(from) + time.saturating_sub(until);
            heard.as_millis() as u64 / 5
        }
    }

    /// Watches the peer as the endpoint does, with one probe a round. Returns when the link ended,
    /// if it did so in time.
    fn watch(checks: &mut RefusalChecks, peer: &mut Peer, limit: Duration) -> Option<Duration> {
        let mut time = Duration::ZERO;
        while time < limit {
            let began = time;
            let begins = peer.refuses() && checks.refused(peer.received(time));
            time += if begins { Duration::ZERO } else { checks.pause(PROBE_INTERVAL) };
            let elapsed = time - began;
            if checks.judge(elapsed, peer.received(time), ROUND_TRIP_TIME) {
                return Some(time);
            }
            time = time.max(began + checks.rest(PROBE_INTERVAL));
            peer.wait(time - began);
        }
        None
    }

    #[test]
    fn a_pause_of_a_peer_whose_probes_a_firewall_refuses_ends_no_link() {
        for credit in [None, Some(6.0), Some(1.0)] {
            for stood in [300, 1_500, 60_000].map(Duration::from_millis) {
                for pause in [50, 120, 700, 1_500].map(Duration::from_millis) {
                    let silent = [stood, stood + pause];
                    let limit = stood + 10 * pause;
                    let ended =
                        watch(&mut RefusalChecks::default(), &mut Peer { credit, silent }, limit);
                    assert_eq!(ended, None, "a pause of {pause:?} after {stood:?}");
                }
                let silent = [stood, Duration::MAX];
                let limit = stood + Duration::from_secs(10);
                let ended =
                    watch(&mut RefusalChecks::default(), &mut Peer { credit, silent }, limit);
                assert!(ended.is_some(), "a long silence ends the link");
            }
        }
    }

    /// The socket's buffer may hold packets of a killed process for a moment.
    #[test]
    fn packets_that_a_killed_process_has_left_delay_its_notice_little() {
        for left in [0, 20, 40, 100].map(Duration::from_millis) {
            for credit in [None, Some(6.0)] {
                let mut peer = Peer { credit, silent: [left, Duration::MAX] };
                let limit = Duration::from_secs(3);
                let ended =
                    watch(&mut RefusalChecks::default(), &mut peer, limit).expect("it ends");
                let soon = left + CHECK_LENGTH_MIN + 2 * CHECK_PROBE_INTERVAL;
                let soon = if left.is_zero() || credit.is_none() { soon } else { limit };
                assert!(ended <= soon, "{ended:?} where packets came for {left:?}");
            }
        }
    }

    /// The watcher stands still, and then reads what a process sent before it was killed.
    #[test]
    fn packets_that_a_held_up_watcher_reads_late_do_not_make_refusals_wrong() {
        let mut checks = RefusalChecks::default();
        checks.refused(7);
        assert!(!checks.judge(Duration::from_secs(10), 8, ROUND_TRIP_TIME));
        assert!(!checks.is_open() && !checks.are_wrong());
        let end = refuse_all(&mut checks, 0, ROUND_TRIP_TIME).expect("it ends");
        assert!(end <= CHECK_LENGTH_MIN + CHECK_PROBE_INTERVAL, "{end:?}");
    }

    #[test]
    fn a_short_pause_ends_no_link_with_a_peer_that_an_earlier_link_has_found_alive() {
        let silent = [Duration::from_millis(5), Duration::from_millis(1_500)];
        let mut peer = Peer { credit: None, silent };
        let mut checks = RefusalChecks::default();
        checks.distrust();
        assert_eq!(watch(&mut checks, &mut peer, Duration::from_secs(5)), None);
        let ended = watch(&mut RefusalChecks::default(), &mut peer, Duration::from_secs(5));
        assert!(ended.is_some(), "the first link with the peer cannot know");
    }

    #[test]
    fn a_firewall_that_refuses_every_probe_begins_few_checks() {
        let (mut checks, mut peer) =
            (RefusalChecks::default(), Peer { credit: None, silent: NEVER });
        assert_eq!(watch(&mut checks, &mut peer, Duration::from_secs(60)), None);
        assert_eq!(checks.rest(PROBE_INTERVAL), PROBE_INTERVAL * 64);
    }

    #[test]
    fn a_link_without_refusals_for_ten_minutes_is_as_a_new_one() {
        let (mut checks, mut peer) =
            (RefusalChecks::default(), Peer { credit: None, silent: NEVER });
        assert_eq!(watch(&mut checks, &mut peer, Duration::from_secs(60)), None);
        assert!(!checks.judge(REFUSALS_FORGOTTEN_AFTER, 0, ROUND_TRIP_TIME));
        let end = refuse_all(&mut checks, 0, ROUND_TRIP_TIME).expect("it ends");
        assert!(end <= CHECK_LENGTH_MIN + CHECK_PROBE_INTERVAL, "{end:?}");
    }

    #[test]
    fn a_host_that_always_refuses_is_checked_less_and_less_and_then_as_before() {
        let mut checks = RefusalChecks::default();
        let mut pauses = Vec::new();
        for received in 0..10 {
            checks.refused(received);
            assert!(!checks.judge(CHECK_PROBE_INTERVAL, received + 1, ROUND_TRIP_TIME));
            pauses.push(checks.pause(PROBE_INTERVAL));
        }
        assert!(pauses.is_sorted() && pauses[0] == PROBE_INTERVAL, "{pauses:?}");
        assert_eq!(pauses[9], PROBE_INTERVAL * 64);
        assert!(!checks.judge(pauses[9], 10, ROUND_TRIP_TIME)); // a probe without an answer
        assert_eq!(checks.pause(PROBE_INTERVAL), PROBE_INTERVAL * 64);
        assert!(!checks.judge(REFUSALS_FORGOTTEN_AFTER, 10, ROUND_TRIP_TIME));
        assert_eq!(checks.pause(PROBE_INTERVAL), PROBE_INTERVAL);
    }
}
