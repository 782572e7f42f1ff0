//! The command line of a verb that is a daemon with flags, or an operator's task.

use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};

/// What the command line asks of a daemon.
#[derive(Clone, Debug)]
pub enum DaemonVerb<Flags, Task> {
    /// Run the daemon.
    Run(Flags),
    /// Do something with daemons that run.
    Task(Task),
}

// By hand, since what a derive makes of flags beside a task asks for the flags' values even where
// there is a task, if a variable states one of them.
impl<Flags: FromArgMatches, Task: FromArgMatches> FromArgMatches for DaemonVerb<Flags, Task> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        match matches.subcommand() {
            Some(_) => Task::from_arg_matches(matches).map(Self::Task),
            None => Flags::from_arg_matches(matches).map(Self::Run),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<Flags: Args, Task: Subcommand> Args for DaemonVerb<Flags, Task> {
    fn augment_args(command: Command) -> Command {
        let command = Task::augment_subcommands(Flags::augment_args(command));
        // The derive asks for a subcommand. Here the flags are enough.
        let command = command.subcommand_required(false).arg_required_else_help(false);
        command.args_conflicts_with_subcommands(true).subcommand_negates_reqs(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
