//! QUIC links between nodes that trust one certificate authority.
//!
//! An [`Endpoint`] is one UDP port that both listens and connects. Each pair of nodes shares one
//! [`Link`]: a QUIC connection with mutual TLS 1.3, on which
//!
//! - *bidirectional* streams carry control messages. The acceptor opens the first one, the lane.
//!   The lane announces every further one. Each of those carries a single message too large for the
//!   lane, so that messages keep the order in which they were sent, or a new certificate;
//! - *unidirectional* streams carry chunks ([`BulkSender`], [`BulkReceiver`]): header, body,
//!   header, body, to the end of the stream.
//!
//! Input: messages and chunks of [`crate::protocol`]. Output: the same, validated, or a typed
//! error. A peer that sends bytes that no honest node would send loses its connection, and only
//! that.
//!
//! A [`Dialer`] connects to nodes that may be away, again and again.
//!
//! This module does not know what a message means, or which nodes ought to be connected.

mod allow_list;
mod bulk;
mod control;
mod dialer;
mod endpoint;
mod endpoint_state;
mod enrol;
mod error;
mod host_port;
mod link;
mod links;
mod presented;
mod probe;
mod renewal;
mod settings;
mod slots;
mod socket;
mod timer;
mod tls;
mod wire;

pub use bulk::{BulkReceiver, BulkSender};
pub use dialer::{DialBackoff, DialSettings, Dialer};
pub use endpoint::{BindError, Endpoint, Expected};
pub use enrol::{EnrolError, enrol, enrol_as, renew};
pub use error::{ConnectError, LinkError};
pub use host_port::{BoundSocket, HostPort, HostPortError};
pub use link::{Encoded, Link};
pub use links::EndpointStats;
pub use probe::RefusalChecks;
pub use settings::{MAX_MTU, Settings, SettingsError};
pub use socket::SocketBuffers;

/// The protocol of a node that has no certificate yet. It uses the same port.
pub(crate) const ENROL_PROTOCOL: &str = "everstep-enrol/2";
