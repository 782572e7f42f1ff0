//! Claims: which cluster writes into a store.
//!
//! A cluster that begins or resumes a run takes the next number, `claims/000007.json`. Before it
//! writes a manifest it lists the claims. A greater number than its own means that another cluster
//! has resumed the run, so it stops writing. Two clusters never share a number, since a claim is
//! created only if there is none.

use everstep_transport::protocol::Step;
use serde::{Deserialize, Serialize};

use crate::names::ObjectName;
use crate::store::{Created, Store, StoreError, StoredObject};

/// How many clusters may take a number before this one, while it tries to take one.
const MAX_TRIES: u32 = 32;
/// The largest claim, bytes.
const MAX_CLAIM_BYTES: u64 = 64 << 10;

/// What a claim says, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The identity of the run.
    pub run: String,
    /// The cluster, as people know it: a coordinator's address or folder.
    pub cluster: String,
    /// The step that the cluster began with.
    pub step: u64,
    /// When it was made, seconds of Unix time by the cluster's clock.
    pub made: u64,
    /// What makes this claim different from any other with the same words.
    pub nonce: String,
}

impl Claim {
    /// A claim with a new nonce.
    ///
    /// # Errors
    /// If this machine has no random numbers.
    pub fn new(run: &str, cluster: &str, step: Step, made: u64) -> Result<Self, getrandom::Error> {
        let nonce = format!("{:016x}{:016x}", getrandom::u64()?, getrandom::u64()?);
        Ok(Self { run: run.into(), cluster: cluster.into(), step: step.0, made, nonce })
    }
}

/// Takes the next number for a claim. Returns the number.
///
/// # Errors
/// Those of the store. A store in which others take numbers as fast is refused.
pub fn take(store: &dyn Store, claim: &Claim) -> Result<u64, StoreError> {
    let bytes = serde_json::to_vec(claim).expect("a claim is plain data");
    for _ in 0..MAX_TRIES {
        let number = next(&store.list()?).ok_or_else(|| {
            StoreError::refuse(store.place(), "its claims have no more numbers; use a new folder")
        })?;
        if store.put_new(&ObjectName::Claim(number), &bytes)? == Created::Mine {
            return Ok(number);
        }
    }
    let why =
        "other clusters claim this store all the time; stop them, or use a folder for each run";
    Err(StoreError::refuse(store.place(), why))
}

/// What the claim with this number says.
///
/// # Errors
/// Those of the store. A claim that cannot be read is damaged.
pub fn read(store: &dyn Store, number: u64) -> Result<Claim, StoreError> {
    let name = ObjectName::Claim(number);
    let bytes = store.read_whole(&name, MAX_CLAIM_BYTES)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let why = format!("it is no claim: {error}");
        StoreError::new(crate::store::ErrorKind::Damaged, store.place(), &name, why)
    })
}

/// The greatest number that a cluster has taken.
pub fn newest(listing: &[StoredObject]) -> Option<u64> {
    let number = |object: &StoredObject| match object.name {
        ObjectName::Claim(number) => Some(number),
        _ => None,
    };
    listing.iter().filter_map(number).max()
}

/// Whether another cluster has taken over since this number was taken. Also if the listing lacks
/// this claim: then it was deleted by hand, and no cluster may rely on it.
pub fn is_outdone(listing: &[StoredObject], own: u64) -> bool {
    newest(listing) != Some(own)
}

fn next(listing: &[StoredObject]) -> Option<u64> {
    newest(listing).map_or(Some(1), |newest| newest.checked_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::directory::DirectoryStore;

    fn claimed(number: u64) -> StoredObject {
        StoredObject { name: ObjectName::Claim(number), bytes: 1, changed: 0 }
    }

    #[test]
    fn a_claim_holds_until_another_one_is_made() {
        assert!(!is_outdone(&[claimed(1), claimed(2)], 2));
        assert!(is_outdone(&[claimed(2), claimed(3)], 2));
        assert!(is_outdone(&[claimed(1)], 2), "it was deleted");
        assert!(is_outdone(&[], 1));
    }

    #[test]
    fn numbers_end_without_a_panic() {
        assert_eq!((next(&[]), next(&[claimed(6)])), (Some(1), Some(7)));
        assert_eq!(next(&[claimed(u64::MAX)]), None);
    }

    #[test]
    fn clusters_that_claim_at_once_get_numbers_of_their_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let take_one = |index: u64| {
            let store = DirectoryStore::open(folder.path()).expect("a store");
            let claim = Claim::new("r", &format!("c{index}"), Step(index), 0).expect("a claim");
            (take(&store, &claim).expect("taken"), claim)
        };
        let taken: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|it| scope.spawn(move || take_one(it))).collect();
            threads.into_iter().map(|it| it.join().expect("no panic")).collect()
        });
        let mut numbers: Vec<_> = taken.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
        let store = DirectoryStore::open(folder.path()).expect("a store");
        for (number, claim) in &taken {
            assert_eq!(read(&store, *number).as_ref(), Ok(claim));
        }
        let listing = store.list().expect("listed");
        let holders = taken.iter().filter(|(number, _)| !is_outdone(&listing, *number));
        assert_eq!(holders.count(), 1);
    }
}
