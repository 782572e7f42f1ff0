//! Claims: which cluster writes into a store.
//!
//! A cluster claims a store before it uses it for a run: it creates the next number,
//! `claims/000007.json`. The newest claim counts. Before a cluster writes anything it lists the
//! claims, and if another cluster has a newer one, it writes nothing. So a cluster that resumes a
//! run elsewhere outdoes the one that had it before, whether that one has ended or not. Two
//! clusters never share a number, since a claim is created only if there is none.
//!
//! Any process of a cluster may claim for it, and remembers nothing: the store tells it whether its
//! cluster has a claim. No claim is ever deleted by a program, so a cluster that was outdone learns
//! this even from its first look. A store belongs to one run.

use serde::{Deserialize, Serialize};

use crate::names::ObjectName;
use crate::store::{Created, ErrorKind, Store, StoreError, StoredObject};

/// How many clusters may take a number before this one, while it tries to take one.
const MAX_TRIES: u32 = 32;
/// The largest claim, bytes.
const MAX_CLAIM_BYTES: u64 = 64 << 10;

/// The number of the format of claims that is written and read.
pub const FORMAT: u64 = 1;

/// What a claim says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The identity of the run.
    pub run: String,
    /// What tells the cluster from any other one. It outlives the cluster's processes.
    pub nonce: String,
    /// The cluster, as people know it.
    pub cluster: String,
}

/// A claim as its object has it.
#[derive(Serialize, Deserialize)]
struct StoredClaim {
    format: u64,
    #[serde(flatten)]
    claim: Claim,
}

/// What a claim of any format states.
#[derive(Deserialize)]
struct StatedFormat {
    format: u64,
}

impl Claim {
    /// Whether two claims are of one cluster and one run.
    fn is_of(&self, other: &Self) -> bool {
        self.run == other.run && self.nonce == other.nonce
    }
}

/// How a cluster stands in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its claim is the newest one, and has this number.
    Holds(u64),
    /// It must not write, for this reason, in words for the user.
    Outdone(String),
}

/// How the cluster of this claim stands in a store with this [listing of
/// claims](Store::list_claims). It takes the next number if
/// it has none. `known` is the number that the calling process has learned before.
///
/// # Errors
/// Those of the store. A store in which others take numbers as fast is refused, and so is one of
/// another run.
pub fn hold(
    store: &dyn Store,
    listing: &[StoredObject],
    claim: &Claim,
    known: Option<u64>,
) -> Result<Standing, StoreError> {
    let mut claims = numbers(listing);
    if let Some(known) = known.filter(|known| claims.last() == Some(known)) {
        return Ok(Standing::Holds(known));
    }
    if let Some(known) = known.filter(|known| !claims.contains(known)) {
        let name = ObjectName::Claim(known);
        let place = store.place();
        let why = format!(
            "{place}: the claim of this cluster, {name}, was deleted. Start its workers again to \
             make a new one"
        );
        return Ok(Standing::Outdone(why));
    }
    for _ in 0..MAX_TRIES {
        if let Some(standing) = standing(store, &claims, claim)? {
            return Ok(standing);
        }
        take_next(store, &claims, claim)?;
        // An answer that the object was there already may mean this very request, so only the
        // claims that are there decide.
        claims = numbers(&store.list_claims()?);
    }
    let why =
        "other clusters claim this store all the time. Stop them, or use a folder for each run";
    Err(StoreError::refuse(store.place(), why))
}

/// Looks whether the cluster of this claim could write into a store. Claims nothing.
///
/// # Errors
/// Those of the store. One of another run is refused.
pub fn look(store: &dyn Store, claim: &Claim) -> Result<(), StoreError> {
    standing(store, &numbers(&store.list_claims()?), claim).map(drop)
}

/// How the cluster stands by claims of these numbers. None if it has none yet.
fn standing(
    store: &dyn Store,
    claims: &[u64],
    own: &Claim,
) -> Result<Option<Standing>, StoreError> {
    let Some(newest) = claims.last() else { return Ok(None) };
    let there = read(store, *newest)?;
    if there.is_of(own) {
        return Ok(Some(Standing::Holds(*newest)));
    }
    let is_own = |number: &u64| read(store, *number).map(|older| older.is_of(own));
    for number in claims.iter().rev().skip(1) {
        match is_own(number) {
            Ok(true) => return Ok(Some(Standing::Outdone(outdone(store, *newest, &there)))),
            Err(error) if error.kind == ErrorKind::Retry => return Err(error),
            Ok(false) | Err(_) => {}
        }
    }
    if there.run != own.run {
        let why = format!(
            "{} claims this store for another run, {}. Give each run a folder of its own",
            there.cluster, there.run
        );
        return Err(StoreError::refuse(store.place(), why));
    }
    Ok(None)
}

fn outdone(store: &dyn Store, number: u64, by: &Claim) -> String {
    let (place, name) = (store.place(), ObjectName::Claim(number));
    format!(
        "{place}: another cluster, {}, has claimed this store since ({name}), so this one writes \
         nothing there. End one of the two, and to go on with this one, delete {name} then",
        by.cluster
    )
}

fn take_next(store: &dyn Store, claims: &[u64], claim: &Claim) -> Result<Created, StoreError> {
    let next = claims.last().map_or(Some(1), |newest| newest.checked_add(1));
    let next = next.ok_or_else(|| {
        StoreError::refuse(store.place(), "its claims have no more numbers. Use a new folder")
    })?;
    let stored = StoredClaim { format: FORMAT, claim: claim.clone() };
    let bytes = serde_json::to_vec(&stored).expect("a claim is plain data");
    store.put_new(&ObjectName::Claim(next), &bytes)
}

/// What the claim with this number says.
///
/// # Errors
/// Those of the store. A claim of another format is refused. One that cannot be read is damaged.
pub fn read(store: &dyn Store, number: u64) -> Result<Claim, StoreError> {
    let name = ObjectName::Claim(number);
    let bytes = store.read_whole(&name, MAX_CLAIM_BYTES)?;
    let damaged = |error: serde_json::Error| {
        let why = format!("it is no claim: {error}. Delete it if no other cluster writes here");
        StoreError::new(ErrorKind::Damaged, store.place(), &name, why)
    };
    let StatedFormat { format } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if format != FORMAT {
        let why = format!(
            "its format is {format}, and this program reads format {FORMAT}. Use a newer program"
        );
        return Err(StoreError::new(ErrorKind::Refuse, store.place(), &name, why));
    }
    let stored: StoredClaim = serde_json::from_slice(&bytes).map_err(damaged)?;
    Ok(stored.claim)
}

/// The numbers that clusters have taken, ascending.
fn numbers(listing: &[StoredObject]) -> Vec<u64> {
    let number = |object: &StoredObject| match object.name {
        ObjectName::Claim(number) => Some(number),
        _ => None,
    };
    let mut numbers: Vec<u64> = listing.iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::store::directory::DirectoryStore;
    use crate::store::{Upload, UploadSize};

    fn claim(cluster: &str) -> Claim {
        Claim { run: "r".into(), nonce: cluster.into(), cluster: format!("cluster {cluster}") }
    }

    fn folder() -> (TempDir, DirectoryStore) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DirectoryStore::open(folder.path()).expect("a store");
        (folder, store)
    }

    fn stands(store: &DirectoryStore, claim: &Claim, known: Option<u64>) -> Standing {
        hold(store, &store.list_claims().expect("listed"), claim, known).expect("it answers")
    }

    #[test]
    fn a_cluster_finds_its_own_claim_again_until_another_one_outdoes_it() {
        let (_folder, store) = folder();
        let (first, second) = (claim("a"), claim("b"));
        assert_eq!(stands(&store, &first, None), Standing::Holds(1));
        assert_eq!(stands(&store, &first, Some(1)), Standing::Holds(1));
        let elsewhere = Claim { cluster: "worker-9".into(), ..first.clone() };
        assert_eq!(stands(&store, &elsewhere, None), Standing::Holds(1), "another process of it");
        assert_eq!(stands(&store, &second, None), Standing::Holds(2));
        for known in [None, Some(1)] {
            let Standing::Outdone(why) = stands(&store, &first, known) else { panic!("outdone") };
            assert!(why.contains("cluster b") && why.contains("claims/000002.json"), "{why}");
        }
        assert_eq!(stands(&store, &second, Some(2)), Standing::Holds(2));
        store.delete(&ObjectName::Claim(2)).expect("deleted by hand");
        assert_eq!(stands(&store, &first, Some(1)), Standing::Holds(1), "it may go on");
        let Standing::Outdone(why) = stands(&store, &second, Some(2)) else { panic!("deleted") };
        assert!(why.contains("was deleted"), "{why}");
        assert_eq!(stands(&store, &second, None), Standing::Holds(2), "it was started again");
    }

    /// A store. It creates the object, and its answer is lost at times.
    struct Flaky<'a>(&'a DirectoryStore, AtomicBool);

    impl Store for Flaky<'_> {
        fn place(&self) -> &str {
            self.0.place()
        }

        fn put_new(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, StoreError> {
            let created = self.0.put_new(name, bytes)?;
            if self.1.swap(false, Ordering::Relaxed) {
                return Err(StoreError::new(ErrorKind::Retry, self.place(), name, "reset"));
            }
            Ok(created)
        }

        fn upload(&self, _: &ObjectName, _: UploadSize) -> Result<Box<dyn Upload>, StoreError> {
            unreachable!("a claim is small")
        }

        fn read(&self, name: &ObjectName, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
            self.0.read(name, range)
        }

        fn size(&self, name: &ObjectName) -> Result<u64, StoreError> {
            self.0.size(name)
        }

        fn list(&self) -> Result<Vec<StoredObject>, StoreError> {
            unreachable!("claims are listed alone")
        }

        fn list_claims(&self) -> Result<Vec<StoredObject>, StoreError> {
            self.0.list_claims()
        }

        fn list_checkpoints(&self) -> Result<Vec<StoredObject>, StoreError> {
            unreachable!("claims are listed alone")
        }

        fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
            self.0.delete(name)
        }

        fn sweep(&self, before: u64) -> Result<u64, StoreError> {
            self.0.sweep(before)
        }
    }

    #[test]
    fn an_answer_that_is_lost_takes_no_second_number() {
        let (_folder, store) = folder();
        let flaky = Flaky(&store, AtomicBool::new(true));
        let lost = hold(&flaky, &[], &claim("a"), None);
        assert_eq!(lost.expect_err("no answer").kind, ErrorKind::Retry);
        let listing = store.list_claims().expect("listed");
        assert_eq!(hold(&flaky, &listing, &claim("a"), None), Ok(Standing::Holds(1)));
        // This process has listed the store before the claim was there.
        assert_eq!(hold(&flaky, &[], &claim("a"), None), Ok(Standing::Holds(1)));
        assert_eq!(numbers(&store.list_claims().expect("listed")), [1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Processes of three clusters look at the store, at once or by an older listing, and
        /// forget what they knew. At each moment one cluster at most may write, and none may again
        /// once another one has claimed the store after it.
        #[test]
        fn no_schedule_lets_two_clusters_write(
            looks in prop::collection::vec((0_usize..3, 0_usize..2, any::<(bool, bool)>()), 1..24),
        ) {
            let (_folder, store) = folder();
            let names = ["a", "b", "c"];
            let mut known = [[None; 2]; 3];
            let mut listings = vec![vec![]; 6];
            let mut claimed: Vec<usize> = Vec::new();
            for (cluster, process, (looks_anew, forgets)) in looks {
                let listing = &mut listings[2 * cluster + process];
                if looks_anew {
                    *listing = store.list_claims().expect("listed");
                }
                let known = &mut known[cluster][process];
                known.take_if(|_| forgets);
                let is_fresh = *listing == store.list_claims().expect("listed");
                let stands = hold(&store, listing, &claim(names[cluster]), *known);
                let numbers = numbers(&store.list_claims().expect("listed"));
                prop_assert!(numbers.iter().copied().eq(1..=numbers.len() as u64));
                if numbers.len() > claimed.len() {
                    claimed.push(cluster);
                }
                match stands.expect("an answer") {
                    Standing::Holds(number) => {
                        prop_assert_eq!(claimed[number as usize - 1], cluster);
                        let is_newest = number as usize == claimed.len();
                        prop_assert!(is_newest || !is_fresh, "{claimed:?}");
                        *known = Some(number);
                    }
                    Standing::Outdone(_) => {
                        prop_assert!(claimed.contains(&cluster));
                    }
                }
                let mut once = claimed.clone();
                once.sort_unstable();
                once.dedup();
                prop_assert_eq!(once.len(), claimed.len(), "no cluster claims twice");
            }
        }
    }

    #[test]
    fn a_store_belongs_to_one_run() {
        let (_folder, store) = folder();
        assert_eq!(stands(&store, &claim("a"), None), Standing::Holds(1));
        for cluster in ["a", "b"] {
            let other = Claim { run: "other".into(), ..claim(cluster) };
            let refused = hold(&store, &store.list_claims().expect("listed"), &other, None);
            let refused = refused.expect_err("it is another run");
            assert_eq!(refused.kind, ErrorKind::Refuse);
            assert!(refused.why.contains("Give each run a folder of its own"), "{refused}");
            assert_eq!(look(&store, &other), Err(refused));
        }
        assert_eq!(look(&store, &claim("a")).and_then(|()| look(&store, &claim("b"))), Ok(()));
        assert_eq!(numbers(&store.list_claims().expect("listed")), [1], "a look claims nothing");
    }

    #[test]
    fn a_claim_that_cannot_be_read_lets_nobody_write() {
        let (_folder, store) = folder();
        assert_eq!(stands(&store, &claim("a"), None), Standing::Holds(1));
        for bytes in [&b""[..], b"{", b"[]", &[255; 9]] {
            store.put_new(&ObjectName::Claim(2), bytes).expect("put");
            for cluster in ["a", "b"] {
                let refused =
                    hold(&store, &store.list_claims().expect("listed"), &claim(cluster), None);
                assert_eq!(refused.expect_err("damaged").kind, ErrorKind::Damaged);
            }
            store.delete(&ObjectName::Claim(2)).expect("deleted");
        }
    }

    #[test]
    fn numbers_end_without_a_panic() {
        let (_folder, store) = folder();
        let last = StoredClaim { format: FORMAT, claim: claim("a") };
        let last = serde_json::to_vec(&last).expect("plain data");
        store.put_new(&ObjectName::Claim(u64::MAX), &last).expect("put");
        let refused = hold(&store, &store.list_claims().expect("listed"), &claim("b"), None);
        assert!(refused.expect_err("no number is left").why.contains("no more numbers"));
    }

    #[test]
    fn clusters_that_claim_at_once_get_numbers_of_their_own() {
        let (folder, store) = folder();
        let take_one = |index: u64| {
            let store = DirectoryStore::open(folder.path()).expect("a store");
            let listing = store.list_claims().expect("listed");
            hold(&store, &listing, &claim(&index.to_string()), None).expect("taken")
        };
        let held: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|it| scope.spawn(move || take_one(it))).collect();
            threads.into_iter().map(|it| it.join().expect("no panic")).collect()
        });
        assert_eq!(numbers(&store.list_claims().expect("listed")), [1, 2, 3, 4, 5, 6, 7, 8]);
        let holding = |index: &u64| stands(&store, &claim(&index.to_string()), None);
        let holders = (0..8).filter(|index| matches!(holding(index), Standing::Holds(8)));
        assert_eq!(holders.count(), 1);
        assert!(held.contains(&Standing::Holds(8)));
    }

    #[test]
    fn processes_of_one_cluster_that_claim_at_once_share_one_claim() {
        let (folder, store) = folder();
        let take_one = |index: u64| {
            let store = DirectoryStore::open(folder.path()).expect("a store");
            let own = Claim { cluster: format!("worker-{index}"), ..claim("a") };
            hold(&store, &store.list_claims().expect("listed"), &own, None).expect("taken")
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|it| scope.spawn(move || take_one(it))).collect();
            threads.into_iter().for_each(|it| drop(it.join().expect("no panic")));
        });
        assert_eq!(numbers(&store.list_claims().expect("listed")), [1]);
    }
}
