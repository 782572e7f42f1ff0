//! Which nodes an endpoint lets in, among those with a certificate of the cluster.
//!
//! A certificate states a node's identity, for a day. The owner of the endpoint decides by a
//! predicate whether the node is wanted here and now.

use std::sync::{Arc, RwLock};

use crate::identity::Identity;

type Predicate = Arc<dyn Fn(&Identity) -> bool + Send + Sync>;

/// The predicate, which can be replaced while the endpoint runs. At first it admits every node.
pub(super) struct AllowList(RwLock<Predicate>);

/// The reason sent to a node that the allow list does not admit.
pub(super) const NOT_LISTED: &str =
    "the node is not in the allow list here: it was removed, or is not known yet";

impl AllowList {
    pub(super) fn replace(&self, admits: impl Fn(&Identity) -> bool + Send + Sync + 'static) {
        *self.0.write().expect(NO_PANIC) = Arc::new(admits);
    }

    pub(super) fn admits(&self, node: &Identity) -> bool {
        let admits = self.0.read().expect(NO_PANIC).clone();
        admits(node)
    }
}

const NO_PANIC: &str = "cloning and replacing do not panic";

impl Default for AllowList {
    fn default() -> Self {
        Self(RwLock::new(Arc::new(|_: &Identity| true)))
    }
}
