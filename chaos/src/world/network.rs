//! What joins the processes of the world: roads between machines, links between processes, streams
//! on the links, and the waits of the nodes that dial.
//!
//! The network keeps no time and knows no process. The world says when an item arrives, and whether
//! its receiver lives.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::Message;
use everstep_worker::step::event::{Lane, StreamItem};

use super::NodeId;
use super::link::Links;
use super::probe::Probes;
use super::road::Roads;
use super::types::{InFlight, Interceptor};
use super::wire::Wire;
use crate::random::Random;

/// The wait before the second try to reach a coordinator. Each wait is twice as long as the one
/// before, up to [`RECONNECT_BACKOFF_MAX`].
pub const RECONNECT_BACKOFF: Duration = Duration::from_millis(50);
const RECONNECT_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Roads, links, streams and dials.
#[derive(Default)]
pub struct Network {
    pub roads: Roads,
    pub links: Links,
    pub wire: Wire,
    pub probes: Probes,
    /// How long each node waits before it dials the coordinator at a place again.
    reconnecting: BTreeMap<(NodeId, usize), Duration>,
    interceptor: Option<Interceptor>,
}

impl Network {
    /// Drops every link with all that is under way. Roads stay as they are.
    pub fn begin_anew(&mut self) {
        (self.links, self.wire, self.probes, self.reconnecting) = Default::default();
    }

    // The interceptor.

    /// From now on `interceptor` sees all that is sent.
    pub fn intercept(&mut self, interceptor: Interceptor) {
        self.interceptor = Some(interceptor);
    }

    /// Whether there is an interceptor, which may change what is sent.
    pub fn is_intercepted(&self) -> bool {
        self.interceptor.is_some()
    }

    /// The messages that go out in a message's place.
    pub fn messages(&mut self, from: NodeId, to: NodeId, message: Message) -> Vec<Message> {
        let mut messages = vec![message];
        if let Some(interceptor) = &mut self.interceptor {
            interceptor(InFlight::Messages { from, to, messages: &mut messages });
        }
        messages
    }

    /// The items that go out on a lane in an item's place.
    pub fn items(
        &mut self,
        from: NodeId,
        to: NodeId,
        lane: Lane,
        item: StreamItem,
    ) -> Vec<StreamItem> {
        let mut items = vec![item];
        if let Some(interceptor) = &mut self.interceptor {
            interceptor(InFlight::StreamItems { from, to, lane, items: &mut items });
        }
        items
    }

    // Dials.

    /// A node will dial a coordinator again after `wait`.
    pub fn wait_to_dial(&mut self, node: NodeId, place: usize, wait: Duration) {
        self.reconnecting.insert((node, place), wait);
    }

    /// The wait after a dial that was not answered: twice the one before.
    pub fn longer_wait(&self, node: NodeId, place: usize) -> Duration {
        let before = self.reconnecting.get(&(node, place));
        before.map_or(RECONNECT_BACKOFF, |wait| (*wait * 2).min(RECONNECT_BACKOFF_MAX))
    }

    /// A coordinator has answered.
    pub fn answered(&mut self, node: NodeId, place: usize) {
        self.reconnecting.remove(&(node, place));
    }

    // Streams.

    /// Nothing more arrives from this sender.
    pub fn drop_streams(&mut self, from: NodeId, to: NodeId) {
        self.wire.retain(|stream| stream.ends() != (from, to));
    }

    /// A process is gone. Some of the streams that it sent to another process are lost, and all
    /// that the other sent to it.
    pub fn cut_streams(&mut self, gone: NodeId, peer: NodeId, random: &mut Random) {
        self.wire.retain(|stream| {
            let (from, to) = stream.ends();
            let incoming = (from, to) == (peer, gone);
            let lost = (from, to) == (gone, peer) && random.below(2) == 0;
            !incoming && !lost
        });
    }
}
