//! The meaning of the user's keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// An action of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Choose the row with this number, from 0.
    Choose(usize),
    /// Choose the row above.
    Up,
    /// Choose the row below.
    Down,
    /// Kill the chosen worker.
    Kill,
    /// Stop the chosen worker's process, or let it go on.
    Pause,
    /// Start one more worker.
    Add,
    /// Let the chosen worker leave in good order.
    Drain,
    /// End the run early.
    Quit,
}

/// The list of keys for the user. It fits on a terminal of 80 columns.
pub(super) const LEGEND: &str =
    "1-9, arrows choose   k kill   p pause/resume   d drain   a add   q quit";

/// The meaning of a key. None for other keys.
pub(super) fn action(key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    Some(match key.code {
        // In raw mode the terminal does not send a signal for it.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Action::Quit,
        KeyCode::Char(digit @ '1'..='9') => Action::Choose(digit as usize - '1' as usize),
        KeyCode::Up | KeyCode::Left => Action::Up,
        KeyCode::Down | KeyCode::Right => Action::Down,
        KeyCode::Char('k') => Action::Kill,
        KeyCode::Char('p') => Action::Pause,
        KeyCode::Char('a') => Action::Add,
        KeyCode::Char('d') => Action::Drain,
        KeyCode::Char('q') | KeyCode::Esc => Action::Quit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(code: KeyCode) -> Option<Action> {
        action(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn every_key_of_the_legend_does_something() {
        for key in "kpdaq19".chars() {
            assert!(press(KeyCode::Char(key)).is_some(), "{key}");
        }
        assert_eq!(press(KeyCode::Char('3')), Some(Action::Choose(2)));
        assert_eq!(press(KeyCode::Down), Some(Action::Down));
        assert_eq!(press(KeyCode::Char('x')), None);
    }

    #[test]
    fn interrupting_quits_and_c_alone_does_nothing() {
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(action(interrupt), Some(Action::Quit));
        assert_eq!(press(KeyCode::Char('c')), None);
    }
}
