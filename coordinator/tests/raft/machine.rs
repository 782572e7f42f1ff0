//! The state machine. It keeps the count of its numbers, and a digest of the numbers and their
//! places.

use everstep_coordinator::raft::CommittedEntry;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The index of the last number.
    pub applied: u64,
    pub count: u64,
    pub digest: u64,
}

impl Machine {
    pub fn apply(&mut self, agreed: &CommittedEntry) {
        self.applied = agreed.position.index;
        self.count += 1;
        for number in [agreed.position.index, agreed.position.term.0, value(&agreed.bytes)] {
            let mixed = (self.digest ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd);
            self.digest = mixed ^ (mixed >> 32);
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        [self.applied, self.count, self.digest].map(u64::to_le_bytes).concat()
    }

    /// The machine of a snapshot. An empty snapshot gives a new machine.
    pub fn decode(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::default();
        }
        let number = |at: usize| value(&bytes[8 * at..][..8]);
        Self { applied: number(0), count: number(1), digest: number(2) }
    }
}

pub fn value(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
