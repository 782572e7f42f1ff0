//! The versions of the protocol, and how two nodes agree on one.
//!
//! A version fixes the bytes of every message and of every chunk's header. A connecting node offers
//! all versions that it speaks in the ALPN of the handshake. The peer takes the newest of them that
//! it speaks too, and refuses the handshake if it speaks none. So builds of neighbouring versions
//! work together while a cluster is upgraded node by node.
//!
//! A build that changes the bytes of any message raises the end of [`PROTOCOL_VERSIONS`], and keeps
//! the start as long as it can still write and read the older bytes. Golden files in the tests fail
//! if the bytes change without that.

use std::ops::RangeInclusive;

/// The versions of the protocol that this build speaks. Version 1 was that of development builds,
/// which compared a digest of their message layouts.
pub const PROTOCOL_VERSIONS: RangeInclusive<u16> = 2..=2;

const PREFIX: &str = "everstep/";

/// The names of these versions in the ALPN, the newest first.
pub fn alpn(versions: &RangeInclusive<u16>) -> Vec<Vec<u8>> {
    versions.clone().rev().map(|version| format!("{PREFIX}{version}").into_bytes()).collect()
}

/// These versions in words: `everstep/2`, or `everstep/2 to 4`.
pub fn spoken(versions: &RangeInclusive<u16>) -> String {
    match (versions.start(), versions.end()) {
        (oldest, newest) if oldest == newest => format!("{PREFIX}{newest}"),
        (oldest, newest) => format!("{PREFIX}{oldest} to {newest}"),
    }
}

/// The version with this name in the ALPN. `None` for another protocol.
pub fn version_of(alpn: &[u8]) -> Option<u16> {
    std::str::from_utf8(alpn).ok()?.strip_prefix(PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_offered_first_and_each_name_is_read_back() {
        let names = alpn(&(2..=4));
        assert_eq!(names, [b"everstep/4", b"everstep/3", b"everstep/2"]);
        assert_eq!(
            names.iter().map(|name| version_of(name)).collect::<Vec<_>>(),
            [Some(4), Some(3), Some(2)]
        );
        assert_eq!(
            (spoken(&(2..=4)), spoken(&(2..=2))),
            ("everstep/2 to 4".into(), "everstep/2".into())
        );
        assert_eq!(version_of(b"everstep-enrol/2"), None);
        assert_eq!(version_of(b"everstep/"), None);
        assert_eq!(version_of(b"everstep/65536"), None);
    }
}
