//! The machine that this process runs on, to tell whether two processes can listen at one address.
//!
//! Linux draws an id at every boot, and numbers its network namespaces. Two processes that share
//! both cannot have the same port. Only a digest leaves the machine.

use std::fs;
use std::os::unix::fs::MetadataExt;

use everstep_transport::protocol::MachineId;

/// The purpose of the digest, for BLAKE3's key derivation.
const CONTEXT: &str = "everstep 2026-11 the machine of a worker";

/// This machine's id. None if the system does not tell.
pub(super) fn id() -> Option<MachineId> {
    let network = fs::metadata("/proc/self/ns/net").ok()?;
    Some(digest(&boot()?, (network.dev(), network.ino())))
}

/// The id that Linux drew when this machine booted. None if the system does not tell.
pub(super) fn boot() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(boot.trim().to_string()).filter(|boot| !boot.is_empty())
}

/// Takes the boot's id, and the device and inode of the network's namespace.
fn digest(boot: &str, network: (u64, u64)) -> MachineId {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(boot.as_bytes());
    hasher.update(&network.0.to_le_bytes()).update(&network.1.to_le_bytes());
    let digest = hasher.finalize();
    MachineId(u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("32 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_another_one_after_a_boot_and_in_another_network() {
        let here = digest("4b1e", (4, 40));
        assert_eq!(digest("4b1e", (4, 40)), here);
        assert!([digest("4b1f", (4, 40)), digest("4b1e", (4, 41))].iter().all(|id| *id != here));
    }

    #[test]
    fn this_machine_has_one_id_for_all_processes() {
        assert!(cfg!(not(target_os = "linux")) || id().is_some());
        assert_eq!(id(), id());
    }
}
