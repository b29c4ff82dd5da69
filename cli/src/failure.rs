//! Why a command ended without doing what it was asked to.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::say;

/// The end of a command that did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// One sentence for the user.
    Message(String),
    /// Whoever read the output has gone: nothing is left to do, and nothing is wrong.
    BrokenPipe,
    /// The user interrupted the command.
    Interrupted,
    /// The command has said itself what failed.
    Reported,
}

/// What commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with this sentence.
    pub fn new(message: impl fmt::Display) -> Failure {
        Failure::Message(message.to_string())
    }

    /// The same of the value of an option, which is named.
    pub fn of_option(self, option: &str) -> Failure {
        match self {
            Failure::Message(message) => Failure::Message(format!("{option} {message}")),
            other => other,
        }
    }

    /// Says what there is to say on stderr and gives the exit status.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Message(message) => {
                say::line(format_args!("error: {message}"));
                ExitCode::FAILURE
            }
            Failure::BrokenPipe => ExitCode::SUCCESS,
            // As shells count an end by SIGINT.
            Failure::Interrupted => ExitCode::from(130),
            Failure::Reported => ExitCode::FAILURE,
        }
    }
}

/// Every error becomes its own sentence, with its causes where the sentence does not tell them already.
impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        let is_broken_pipe = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
        if (&error as &dyn std::error::Error)
            .downcast_ref()
            .is_some_and(is_broken_pipe)
        {
            return Failure::BrokenPipe;
        }
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        Failure::Message(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot load")]
    struct Outer(#[source] io::Error);

    #[test]
    fn causes_are_told_once() {
        let Failure::Message(text) = Outer(io::Error::other("disk on fire")).into() else {
            panic!("an error with a sentence")
        };
        assert_eq!(text, "cannot load: disk on fire");
    }

    #[test]
    fn a_broken_pipe_is_not_an_error() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(matches!(failure, Failure::BrokenPipe));
    }
}
