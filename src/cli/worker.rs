//! The command line of `everstep worker`: the daemon itself, or an operator's commands for workers.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand, ValueEnum};
use everstep_kernels::device::DeviceChoice;
use everstep_transport::protocol::Zone;
use everstep_transport::quic::HostPort;

use super::daemon_verb::DaemonVerb;
use super::demo::duration;
use super::{AskFlags, ClusterFlags, DaemonFlags, FlagError};
use crate::cluster::InstructionSet;

/// `everstep worker`, with flags or with a task.
pub type WorkerVerb = DaemonVerb<WorkerFlags, WorkerTask>;

/// The flags of `everstep worker`.
#[derive(Args, Clone, Debug)]
pub struct WorkerFlags {
    /// The coordinators' addresses
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        required = true,
        env = "EVERSTEP_COORDINATORS"
    )]
    pub coordinators: Vec<String>,
    /// @FILE with a token for workers (such as a run's DIR/join.token), or @- to read the token
    /// from stdin. The token itself in place of @FILE works too, but other users may see it while
    /// the program starts
    #[arg(
        long,
        value_name = "@FILE|@-",
        required = true,
        env = "EVERSTEP_JOIN",
        hide_env_values = true
    )]
    pub join: OsString,
    /// The address at which other workers reach this one (UDP). Port 0 takes a free port. Other
    /// machines do not reach the default
    #[arg(long, value_name = "HOST:PORT", env = "EVERSTEP_LISTEN", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// What the worker's machine may fail together with (a rack, a host, a cloud's zone), in 1 to
    /// 64 printable characters. Neighbouring copies of the same parameters are kept in different
    /// zones where possible
    #[arg(long, value_name = "LABEL", env = "EVERSTEP_ZONE", value_parser = zone)]
    pub zone: Option<Zone>,
    /// Where the worker writes the trained model, if the coordinator asks it to [default: the
    /// directory from which the token is read]. A run with checkpoints has its model in their
    /// store, and then a directory is not needed. A directory that is named here also proves to the
    /// worker that starts there next that this one has ended
    #[arg(long, value_name = "DIR", env = "EVERSTEP_DIR")]
    pub dir: Option<PathBuf>,
    /// Where the worker computes: cpu, cuda:N (the GPU of that number), or auto:N (that GPU if it
    /// can be used, else the CPU) [default: cpu]. Without a number it is GPU 0, so give each worker
    /// of a machine a number. A script computes where it says, and sees the GPU of that number
    /// alone. By default it sees all
    #[arg(long, value_name = "DEVICE", env = "EVERSTEP_DEVICE")]
    pub device: Option<DeviceChoice>,
    /// How long the worker waits after SIGTERM, at most, until other workers have copies of what it
    /// alone holds. After that time, or after a second SIGTERM, it leaves in any case, which may
    /// cost the run the steps since its newest checkpoint, or all of them if it keeps none
    /// [default: as long as it takes]
    #[arg(long, value_name = "SECONDS", env = "EVERSTEP_GRACE")]
    pub grace: Option<u64>,
    /// Watch for the notice with which a cloud takes this machine back, and leave in good order
    /// before that time. `auto` finds the cloud by the machine's firmware, without the network
    /// [default: none]
    #[arg(long, value_name = "CLOUD", env = "EVERSTEP_PREEMPTION")]
    pub preemption: Option<PreemptionSource>,
    /// Where the cloud's metadata service is [default: http://169.254.169.254]
    #[arg(long, value_name = "URL", env = "EVERSTEP_METADATA_URL", requires = "preemption",
        value_parser = metadata_url)]
    pub metadata_url: Option<HostPort>,
    /// Write the begin and the duration of each stage of each step to this file, for Perfetto
    /// (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE", env = "EVERSTEP_TRACE")]
    pub trace: Option<PathBuf>,
    /// Threads to compute with [default: one for each core, and 1 for a script]. The bits of a
    /// script depend on their number, so all workers of its run have the same. Those of other
    /// models do not
    #[arg(long, value_name = "K", env = "EVERSTEP_THREADS",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Instructions to which the mathematics libraries of a script keep: unlike CPUs get the same
    /// bits then, more slowly [default: the newest of each CPU]
    #[arg(long, value_name = "ISA", env = "EVERSTEP_ISA")]
    pub isa: Option<InstructionSet>,
    /// A Python script and its arguments: the worker becomes a process of it, and trains its run
    #[arg(value_name = "SCRIPT", last = true)]
    pub script: Vec<OsString>,
    /// Compute first and send afterwards: measures what sending meanwhile saves.
    #[arg(long, hide = true)]
    pub no_overlap: bool,
    /// Reach workers of this host over the network, too: measures what shared memory saves.
    #[arg(long, hide = true)]
    pub no_shared_memory: bool,
    /// The flags of its file and its log.
    #[command(flatten)]
    pub daemon: DaemonFlags,
}

/// The cloud that a worker asks about its machine.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptionSource {
    /// The cloud that the machine's firmware names, if it names one
    Auto,
    /// Amazon EC2: interruption notices of Spot Instances
    Aws,
    /// Google Compute Engine: preemption of Spot VMs
    Gcp,
    /// Microsoft Azure: Scheduled Events
    Azure,
    /// No notice is asked for
    None,
}

impl PreemptionSource {
    /// The word on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|it| it.get_name().to_string()).unwrap_or_default()
    }
}

/// What an operator does with a worker.
#[derive(Subcommand, Clone, Debug)]
pub enum WorkerTask {
    /// Let a worker leave in good order: it first hands over what it holds
    Drain(DrainFlags),
    /// List the workers of a cluster, also those that wait for a run
    Ls(AskFlags),
    /// Make a token, and print the command with which workers of other machines join
    Add(WorkerAddFlags),
    /// Shut a worker out: its links are closed at once, and the run goes on without it if it can
    Revoke(RevokeWorkerFlags),
}

/// The flags of `everstep worker add`.
#[derive(Args, Clone, Debug)]
pub struct WorkerAddFlags {
    /// How many workers may join with the command
    #[arg(long, value_name = "N", env = "EVERSTEP_USES", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub uses: u32,
    /// How long the token is valid
    #[arg(long, value_name = "TIME", env = "EVERSTEP_TTL", default_value = "15m",
        value_parser = duration)]
    pub ttl: Duration,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

/// The flags of `everstep worker revoke`.
#[derive(Args, Clone, Debug)]
pub struct RevokeWorkerFlags {
    /// The worker's number, its id as `id:9`, or its name, all as in `everstep worker ls`
    #[arg(value_name = "NUMBER|id:ID|NAME")]
    pub worker: String,
    /// Revoke the name even if the cluster knows no worker of that name, such as one that is gone
    /// for long
    #[arg(long, env = "EVERSTEP_UNKNOWN", value_parser = BoolishValueParser::new())]
    pub unknown: bool,
    /// The cluster to ask.
    #[command(flatten)]
    pub ask: AskFlags,
}

/// The flags of `everstep worker drain`.
#[derive(Args, Clone, Debug)]
pub struct DrainFlags {
    /// The worker's number, its id as `id:9`, or its name, all as in `everstep worker ls`. For a
    /// local run also the name of its log, such as worker-2
    #[arg(value_name = "NUMBER|id:ID|NAME")]
    pub worker: String,
    /// Where the cluster is.
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Return when the coordinators have agreed, and do not wait until the worker has left
    #[arg(long, env = "EVERSTEP_NO_WAIT", value_parser = BoolishValueParser::new())]
    pub no_wait: bool,
    /// Print the answer as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

fn zone(label: &str) -> Result<Zone, FlagError> {
    Zone::parse(label).ok_or(FlagError::Zone)
}

/// The place of a metadata service. A URL without a port means port 80.
fn metadata_url(url: &str) -> Result<HostPort, FlagError> {
    let place = url.strip_prefix("http://").ok_or(FlagError::MetadataUrl)?;
    let place = place.strip_suffix('/').unwrap_or(place);
    if place.is_empty() || place.contains(['/', '?', '#', '@']) {
        return Err(FlagError::MetadataUrl);
    }
    let has_port = place.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let with_port = if has_port { place.parse() } else { format!("{place}:80").parse() };
    with_port.map_err(|_| FlagError::MetadataUrl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metadata_service_is_named_by_a_plain_url() {
        let place = |url| metadata_url(url).map(|place| place.to_string());
        for (url, place_there) in [
            ("http://169.254.169.254", "169.254.169.254:80"),
            ("http://metadata.google.internal/", "metadata.google.internal:80"),
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://[fd00:ec2::254]", "[fd00:ec2::254]:80"),
        ] {
            assert_eq!(place(url).as_deref(), Ok(place_there), "{url}");
        }
        for url in ["", "http://", "https://a", "a:80", "http://a/path", "http://u@a", "http://a:x"]
        {
            assert_eq!(place(url), Err(FlagError::MetadataUrl), "{url}");
        }
    }
}
