//! Whether a store does what checkpoints need. A worker asks when its run begins, and a launcher
//! before it starts the workers.

use super::{Created, ErrorKind, Store, StoreError};
use crate::names::ObjectName;

/// Creates an object, tries to create it again, reads a part of it, finds it in the listing, and
/// removes it.
///
/// # Errors
/// [`ErrorKind::Refuse`] if the store keeps no conditions or does not say what was written, with
/// the store's name. Other errors are those of the store.
pub fn probe(store: &dyn Store) -> Result<(), StoreError> {
    let nonce = getrandom::u64().map_err(|error| {
        StoreError::refuse(store.place(), format!("no random numbers: {error}"))
    })?;
    let name = ObjectName::Probe(nonce);
    let probed = examine(store, &name, nonce);
    let removed = store.delete(&name);
    probed?;
    removed?;
    match store.size(&name) {
        Err(error) if error.is_missing() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(refused(store, &name, "an object is still there after it was deleted")),
    }
}

fn examine(store: &dyn Store, name: &ObjectName, nonce: u64) -> Result<(), StoreError> {
    let (first, second) = (format!("first {nonce:016x}"), format!("other {nonce:016x}"));
    if store.put_new(name, first.as_bytes())? != Created::Mine {
        return Err(refused(store, name, "a new object was there before it was written"));
    }
    if store.put_new(name, second.as_bytes())? != Created::Theirs {
        let why = "it replaces an object that was to be created only if there is none. Two \
                   clusters could write over each other. Use a store that keeps conditions \
                   (If-None-Match)";
        return Err(refused(store, name, why));
    }
    if store.read_whole(name, 1_000)? != first.as_bytes() {
        return Err(refused(store, name, "it returns other bytes than those that were written"));
    }
    if store.read(name, 2..5)? != first.as_bytes()[2..5] {
        return Err(refused(
            store,
            name,
            "it returns other bytes than the range that was asked for",
        ));
    }
    let listed = store.list()?.into_iter().find(|object| object.name == *name);
    if listed.map(|object| object.bytes) != Some(first.len() as u64) {
        return Err(refused(store, name, "its listing lacks an object that was written before"));
    }
    Ok(())
}

fn refused(store: &dyn Store, name: &ObjectName, why: &str) -> StoreError {
    let why = format!("this store cannot keep checkpoints: {why}");
    StoreError::new(ErrorKind::Refuse, store.place(), name, why)
}
