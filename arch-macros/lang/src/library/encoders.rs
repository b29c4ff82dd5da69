//! Library of the media encoders, which share fragments with the architectures.

use std::path::PathBuf;

use super::{Directory, Library, Source};

/// Subdirectory that contains the encoders.
const ENCODERS: &str = "encoders";

/// Library of the files in the subdirectory `encoders` of a directory of architectures. A fragment of the encoders
/// takes precedence over a fragment of the architectures.
#[derive(Clone, Debug)]
pub struct EncoderDirectory(pub PathBuf);

impl EncoderDirectory {
    fn encoders(&self) -> Directory {
        Directory(self.0.join(ENCODERS))
    }

    fn architectures(&self) -> Directory {
        Directory(self.0.clone())
    }
}

/// Returns a file of the encoders with its path relative to the architectures.
fn relative(source: Source) -> Source {
    let file = format!("{ENCODERS}/{}", source.file);
    Source { file, ..source }
}

impl Library for EncoderDirectory {
    fn find(&self, name: &str) -> Option<Source> {
        self.encoders().find(name).map(relative)
    }

    fn names(&self) -> Vec<String> {
        self.encoders().names()
    }

    fn fragment(&self, name: &str) -> Option<Source> {
        let own = self.encoders().fragment(name).map(relative);
        own.or_else(|| self.architectures().fragment(name))
    }

    fn fragments(&self) -> Vec<String> {
        [self.encoders().fragments(), self.architectures().fragments()].concat()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        let files: Vec<Source> = self.encoders().files().map(relative).collect();
        Box::new(files.into_iter())
    }
}
