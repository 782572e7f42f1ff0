//! Workers as format 1 stores them: a device beside the CPU was one of CUDA's.

// The types mirror those of that build. Their docs are at today's types.
#![allow(missing_docs)]

use std::net::SocketAddr;

use everstep_transport::protocol::message::{Fingerprint, Registration};
use everstep_transport::protocol::run::Precision;
use everstep_transport::protocol::{
    Accelerator, Device, DeviceKind, DeviceName, HostName, MachineId, ModelPlace, NodeName, Zone,
};
use rkyv::{Archive, Deserialize, Serialize};

use crate::format;
use crate::state::workers::{Worker, WorkerPhase};

#[derive(Archive, Serialize, Deserialize)]
pub(super) struct RegistrationV1 {
    incarnation: u64,
    address: SocketAddr,
    fingerprint: Fingerprint,
    probe: u64,
    zone: Option<Zone>,
    device: DeviceV1,
    model: Option<ModelPlace>,
    host: Option<HostName>,
    machine: Option<MachineId>,
}

impl From<RegistrationV1> for Registration {
    fn from(registration: RegistrationV1) -> Self {
        Self {
            incarnation: registration.incarnation,
            address: registration.address,
            fingerprint: registration.fingerprint,
            probe: registration.probe,
            zone: registration.zone,
            device: registration.device.into(),
            model: registration.model,
            host: registration.host,
            machine: registration.machine,
        }
    }
}

#[derive(Archive, Serialize, Deserialize)]
struct DeviceV1 {
    name: DeviceName,
    precision: Precision,
    gpu: Option<GpuV1>,
}

impl From<DeviceV1> for Device {
    fn from(device: DeviceV1) -> Self {
        let DeviceV1 { name, precision, gpu } = device;
        Self { name, precision, accelerator: gpu.map(Into::into) }
    }
}

#[derive(Archive, Serialize, Deserialize)]
struct GpuV1 {
    number: u32,
    capability: (u32, u32),
    uuid: [u8; 16],
}

impl From<GpuV1> for Accelerator {
    fn from(gpu: GpuV1) -> Self {
        let GpuV1 { number, capability, uuid } = gpu;
        let kind = DeviceKind::parse("cuda").expect("a valid kind");
        let capability = format::capability(capability);
        Self { kind, number, capability, uuid, peak_flops: None }
    }
}

#[derive(Archive, Serialize, Deserialize)]
pub(super) struct WorkerV1 {
    number: u32,
    name: NodeName,
    registration: RegistrationV1,
    phase: WorkerPhase,
}

impl From<WorkerV1> for Worker {
    fn from(worker: WorkerV1) -> Self {
        let WorkerV1 { number, name, registration, phase } = worker;
        Self { number, name, registration: registration.into(), phase }
    }
}
