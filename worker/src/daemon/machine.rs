//! The machine that this process runs on: to tell whether two processes can listen at one address,
//! and whether the machine has booted since another process ran on it.
//!
//! Linux draws an id at every boot, and numbers its network namespaces. Two processes that share
//! both cannot have the same port. Only digests leave the machine, or are written down.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use everstep_transport::protocol::MachineId;
use serde::{Deserialize, Serialize};

/// The purpose of the digest, for BLAKE3's key derivation.
const CONTEXT: &str = "everstep 2026-11 the machine of a worker";
/// The same for a digest that a boot does not change.
const LASTING_CONTEXT: &str = "everstep 2026-11 the machine of a worker, whatever its boot";

/// This machine's id. None if the system does not tell.
pub(super) fn id() -> Option<MachineId> {
    let network = fs::metadata("/proc/self/ns/net").ok()?;
    Some(digest(&boot()?, FileId::of(&network)))
}

/// A file, as the kernel tells it from all others. In JSON it is an array of the two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 2]", into = "[u64; 2]")]
pub(super) struct FileId {
    /// The number of the device that the file lies on. It may change at a boot.
    pub device: u64,
    /// The number of the file on the device.
    pub inode: u64,
}

impl FileId {
    /// The file with this metadata.
    pub fn of(file: &Metadata) -> Self {
        Self { device: file.dev(), inode: file.ino() }
    }
}

impl From<[u64; 2]> for FileId {
    fn from([device, inode]: [u64; 2]) -> Self {
        Self { device, inode }
    }
}

impl From<FileId> for [u64; 2] {
    fn from(FileId { device, inode }: FileId) -> Self {
        [device, inode]
    }
}

/// A boot of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MachineBoot {
    /// The id that Linux drew when this machine booted.
    pub boot: String,
    /// What the machine keeps through its boots, and has in common with no other machine. None if
    /// the system does not tell.
    pub machine: Option<String>,
}

impl MachineBoot {
    /// That of this process. None if the system does not tell.
    pub fn own() -> Option<Self> {
        let own = Self { boot: boot()?, machine: lasting(Path::new("/")) };
        #[cfg(feature = "failpoints")]
        let own = own.replaced_by_a_test();
        Some(own)
    }

    /// A test cannot boot this machine. So it says that another boot is under way.
    #[cfg(feature = "failpoints")]
    fn replaced_by_a_test(self) -> Self {
        let said = |name| std::env::var(name).ok();
        let boot = said("FAILPOINT_BOOT").unwrap_or(self.boot);
        Self { boot, machine: said("FAILPOINT_MACHINE").or(self.machine) }
    }
}

fn boot() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(boot.trim().to_string()).filter(|boot| !boot.is_empty())
}

/// A digest of the system's machine-id, and of the addresses of its network cards. The first alone
/// is not enough: images of machines and of containers are copied with it. A container without a
/// network card of its own has no such digest.
fn lasting(root: &Path) -> Option<String> {
    let id = fs::read_to_string(root.join("etc/machine-id")).ok()?;
    let id = Some(id.trim()).filter(|id| !id.is_empty() && *id != "uninitialized")?;
    let interfaces = fs::read_dir(root.join("sys/class/net")).ok()?;
    let paths = interfaces.filter_map(|interface| Some(interface.ok()?.path()));
    let cards = paths.filter(|path| path.join("device").exists());
    let mut addresses: Vec<String> =
        cards.filter_map(|path| fs::read_to_string(path.join("address")).ok()).collect();
    addresses.sort_unstable();
    let mut hasher = blake3::Hasher::new_derive_key(LASTING_CONTEXT);
    for text in std::iter::once(id).chain(addresses.iter().map(|address| address.trim())) {
        hasher.update(text.as_bytes()).update(b"\n");
    }
    (!addresses.is_empty()).then(|| hasher.finalize().to_hex().to_string())
}

/// Takes the boot's id, and the file of the network's namespace.
fn digest(boot: &str, network: FileId) -> MachineId {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(boot.as_bytes());
    hasher.update(&network.device.to_le_bytes()).update(&network.inode.to_le_bytes());
    let digest = hasher.finalize();
    MachineId(u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("32 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_another_one_after_a_boot_and_in_another_network() {
        let [one, other] = [40, 41].map(|inode| FileId { device: 4, inode });
        let here = digest("4b1e", one);
        assert_eq!(digest("4b1e", one), here);
        assert!([digest("4b1f", one), digest("4b1e", other)].iter().all(|id| *id != here));
    }

    #[test]
    fn a_machine_keeps_its_digest_and_a_copy_of_it_has_another_one() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let told = || lasting(root.path());
        write("sys/class/net/eth0/address", "02:00:00:00:00:01\n");
        assert_eq!(told(), None, "there is no machine-id");
        write("etc/machine-id", "3d12\n");
        assert_eq!(told(), None, "no network card: it may be a container");
        write("sys/class/net/eth0/device", "");
        let machine = told();
        assert!(machine.is_some());
        write("sys/class/net/veth7/address", "02:00:00:00:00:09\n");
        assert_eq!(told(), machine, "what is no card does not count");
        write("sys/class/net/eth0/address", "02:00:00:00:00:02\n");
        assert!(told().is_some_and(|other| Some(other) != machine), "the copy of a machine");
        for empty in ["", "uninitialized\n"] {
            write("etc/machine-id", empty);
            assert_eq!(told(), None, "{empty:?}");
        }
    }

    #[test]
    fn this_machine_has_one_id_for_all_processes() {
        assert!(cfg!(not(target_os = "linux")) || id().is_some());
        assert_eq!(id(), id());
    }
}
