//! (to come)
use crate::gguf::Metadata;
/// placeholder
#[derive(Debug, thiserror::Error)]
#[error("vocab")]
pub struct VocabError;
/// placeholder
pub struct Vocab;
impl Vocab {
    /// placeholder
    pub fn load(_: &Metadata) -> Result<Vocab, VocabError> {
        Ok(Vocab)
    }
}
