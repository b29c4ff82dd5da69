//! Progress bars on stderr, shown only on terminals.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal;

/// Progress bar that appears on the first update and is cleared on drop.
pub struct Bar(ProgressBar);

/// Creates a bar with `n_steps` steps.
pub fn bar(what: &'static str, n_steps: usize) -> Bar {
    styled(n_steps, what, "{msg} [{bar:40}] {percent}%")
}

/// Creates a bar with `n_steps` steps that shows the time left.
pub fn timed(what: &'static str, n_steps: usize) -> Bar {
    styled(n_steps, what, "{msg} [{bar:40}] {percent}%, {eta} left")
}

fn styled(n_steps: usize, what: &'static str, template: &str) -> Bar {
    let bar = if is_hidden() {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(n_steps as u64)
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    Bar(bar.with_message(what))
}

/// Returns true if progress bars are not shown.
pub fn is_hidden() -> bool {
    !io::stderr().is_terminal() || terminal::is_simple()
}

impl Bar {
    /// Sets the bar to step `n` of `n_steps`.
    pub fn set_of(&self, n: usize, n_steps: usize) {
        self.0.set_length(n_steps as u64);
        self.0.set_position(n as u64);
    }

    /// Sets the bar to step `n`.
    pub fn set(&self, n: usize) {
        self.0.set_position(n as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
