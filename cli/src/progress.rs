//! What is under way, on stderr where that is a terminal.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

use crate::say;

/// A bar that appears when it is first moved and is gone when it is dropped.
pub struct Bar(ProgressBar);

/// A bar of so many steps, named by what is done.
pub fn bar(what: &'static str, n_steps: usize) -> Bar {
    let bar = match is_hidden() {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(n_steps as u64),
    };
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:40}] {percent}%") {
        bar.set_style(style.progress_chars("=> "));
    }
    Bar(bar.with_message(what))
}

/// True if nobody sees bars.
pub fn is_hidden() -> bool {
    !io::stderr().is_terminal() || say::is_simple()
}

impl Bar {
    /// So many steps more are done.
    pub fn advance(&self, n: usize) {
        self.0.inc(n as u64);
    }

    /// So many steps are done.
    pub fn set(&self, n: usize) {
        self.0.set_position(n as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
