//! Errors that end a command.

use std::fmt;
use std::io;
use std::process::ExitCode;

use llama::hub::HubError;
use tracing::error;

/// Reason why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// Error message for the user.
    Message(String),
    /// The reader of standard output has closed it; exit successfully.
    BrokenPipe,
    /// The user interrupted the command.
    Interrupted,
    /// The command has already printed its error.
    Reported,
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Creates a failure with a message.
    pub fn new(message: impl fmt::Display) -> Failure {
        Failure::Message(message.to_string())
    }

    /// Prefixes the message with the option that caused it.
    pub fn of_option(self, option: &str) -> Failure {
        match self {
            Failure::Message(message) => Failure::Message(format!("{option} {message}")),
            other => other,
        }
    }

    /// Appends a remedy to the message.
    pub fn with_remedy(self, remedy: impl fmt::Display) -> Failure {
        match self {
            Failure::Message(message) => Failure::Message(format!("{message}; {remedy}")),
            other => other,
        }
    }

    /// Prints the message to stderr and returns the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Message(message) => {
                error!("{message}");
                ExitCode::FAILURE
            }
            Failure::BrokenPipe => ExitCode::SUCCESS,
            // Shells report termination by SIGINT as 128 + 2.
            Failure::Interrupted => ExitCode::from(130),
            Failure::Reported => ExitCode::FAILURE,
        }
    }
}

/// Formats an error with its causes. Causes already contained in the message are not repeated.
impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        let is_broken_pipe = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
        if (&error as &dyn std::error::Error)
            .downcast_ref()
            .is_some_and(is_broken_pipe)
        {
            return Failure::BrokenPipe;
        }
        if let Some(error) = (&error as &dyn std::error::Error).downcast_ref::<HubError>() {
            return of_hub(error);
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

/// Converts an error of the hub, with the flags that resolve the error.
fn of_hub(error: &HubError) -> Failure {
    match error {
        HubError::Cancelled => Failure::Interrupted,
        HubError::InvalidName { name, .. } if name.contains("://") => {
            Failure::new(format_args!("{name} is not a model name; pass a URL with -mu"))
        }
        HubError::InvalidName { .. } => Failure::new(format_args!("{error} (`llama pull --help` lists all)")),
        HubError::Offline { name } => Failure::new(format_args!(
            "cannot download {name}: offline mode is on (--offline, HF_HUB_OFFLINE); `llama list` shows cached models"
        )),
        HubError::TokenRequired { response } => Failure::new(format_args!(
            "{response}: the model does not exist or requires a token; set -hft or HF_TOKEN"
        )),
        error => Failure::new(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot load")]
    struct Outer(#[source] io::Error);

    #[test]
    fn error_causes_are_not_repeated() {
        let Failure::Message(text) = Outer(io::Error::other("disk on fire")).into() else {
            panic!("expected Failure::Message")
        };
        assert_eq!(text, "cannot load: disk on fire");
    }

    #[test]
    fn broken_pipe_is_success() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(matches!(failure, Failure::BrokenPipe));
    }
}
