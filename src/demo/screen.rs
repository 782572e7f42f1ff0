//! The output of the demo: a terminal, or without one plain lines on stderr.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use super::keys::{Action, action};
use super::model::ViewContent;
use super::view;
use crate::failure::{Exit, Failure};
use crate::output::say;

/// The screen. When it is dropped, and when the program panics, it restores the terminal.
pub(super) enum Screen {
    /// A terminal with keys.
    Terminal(DefaultTerminal),
    /// No terminal, and no keys.
    Plain {
        /// When it printed the last line.
        said_at: Option<Instant>,
    },
}

/// The time between two plain lines.
const DEMO_LINE_INTERVAL: Duration = Duration::from_secs(1);

impl Screen {
    /// Takes the terminal, if there is one.
    pub(super) fn open() -> Result<Self, Failure> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self::Plain { said_at: None });
        }
        ratatui::try_init().map(Self::Terminal).map_err(unusable)
    }

    pub(super) fn show(&mut self, model: &ViewContent) -> Result<(), Failure> {
        match self {
            Self::Terminal(terminal) => {
                terminal.draw(|frame| view::draw(frame, model)).map(drop).map_err(unusable)
            }
            Self::Plain { said_at }
                if said_at.is_none_or(|at| at.elapsed() >= DEMO_LINE_INTERVAL) =>
            {
                *said_at = Some(Instant::now());
                say(view::line(model));
                Ok(())
            }
            Self::Plain { .. } => Ok(()),
        }
    }

    /// Prints an event, if there is no view to show it.
    pub(super) fn tell(&self, sentence: &str) {
        if matches!(self, Self::Plain { .. }) {
            say(sentence);
        }
    }

    /// The user's actions since the last call.
    pub(super) fn actions(&self) -> Result<Vec<Action>, Failure> {
        let mut actions = Vec::new();
        while matches!(self, Self::Terminal(_)) && event::poll(Duration::ZERO).map_err(unusable)? {
            if let Event::Key(key) = event::read().map_err(unusable)? {
                actions.extend(action(key));
            }
        }
        Ok(actions)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if matches!(self, Self::Terminal(_)) {
            ratatui::restore();
        }
    }
}

fn unusable(error: io::Error) -> Failure {
    Failure::new(Exit::Failed, "the terminal cannot be used")
        .because(error)
        .next("send stdout to a file, or through `cat`, for plain lines")
}
