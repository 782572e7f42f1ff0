//! Which cloud tells a worker whether its machine is taken back.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use everstep_transport::protocol::Cloud;
use everstep_worker::daemon::MetadataService;

use crate::cli::{PreemptionSource, WorkerFlags};

/// Where each of the clouds has its metadata service.
const LINK_LOCAL: (Ipv4Addr, u16) = (Ipv4Addr::new(169, 254, 169, 254), 80);
/// Where Linux shows what the firmware says of the machine.
const FIRMWARE: &str = "/sys/class/dmi/id";

/// The service that the worker asks. None if it asks none.
pub(super) fn service(flags: &WorkerFlags) -> Option<MetadataService> {
    let cloud = match flags.preemption.unwrap_or(PreemptionSource::None) {
        PreemptionSource::None => return None,
        PreemptionSource::Aws => Cloud::Aws,
        PreemptionSource::Gcp => Cloud::Gcp,
        PreemptionSource::Azure => Cloud::Azure,
        PreemptionSource::Auto => match cloud_of(Path::new(FIRMWARE)) {
            Some(cloud) => cloud,
            None => {
                let next = "name the cloud with --preemption if the machine is of one";
                tracing::info!(next, "the firmware names no cloud that announces preemptions");
                return None;
            }
        },
    };
    let place = flags.metadata_url.clone();
    Some(MetadataService {
        cloud,
        place: place.unwrap_or_else(|| SocketAddr::from(LINK_LOCAL).into()),
    })
}

/// The cloud that the firmware names.
fn cloud_of(firmware: &Path) -> Option<Cloud> {
    /// The asset tag of each machine of Azure. Other machines of Hyper-V have another one.
    const AZURE_TAG: &str = "7783-7084-3265-9085-8269-3286-77";
    let says = |name: &str, word: &str| {
        fs::read_to_string(firmware.join(name)).is_ok_and(|it| it.trim() == word)
    };
    let clouds = [
        (Cloud::Aws, "sys_vendor", "Amazon EC2"),
        (Cloud::Gcp, "sys_vendor", "Google"),
        (Cloud::Azure, "chassis_asset_tag", AZURE_TAG),
    ];
    clouds.into_iter().find(|(_, name, word)| says(name, word)).map(|(cloud, ..)| cloud)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_firmware_names_the_cloud() {
        for (name, says, cloud) in [
            ("sys_vendor", "Amazon EC2\n", Some(Cloud::Aws)),
            ("sys_vendor", "Google\n", Some(Cloud::Gcp)),
            ("sys_vendor", "Microsoft Corporation\n", None),
            ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n", Some(Cloud::Azure)),
            ("sys_vendor", "\u{fffd}", None),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            fs::write(folder.path().join(name), says).expect("written");
            assert_eq!(cloud_of(folder.path()), cloud, "{says}");
        }
    }
}
