//! Keys and certificates of TLS, from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Files that TLS cannot be done with.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file is not what it should be, or cannot be read.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: pem::Error,
    },
    /// There is no certificate in it.
    #[error("{}: there is no certificate in it", .path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// They do not belong together, or cannot be used.
    #[error("the key and the certificate cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

/// Takes connections with this certificate, and those that vouch for it, and this key; both files are PEM.
pub fn tls(certificates: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let wrong = |path: &Path| {
        let path = path.to_owned();
        |error| TlsError::File { path, error }
    };
    let chain = CertificateDer::pem_file_iter(certificates).map_err(wrong(certificates))?;
    let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(wrong(certificates))?;
    if chain.is_empty() {
        let path = certificates.to_owned();
        return Err(TlsError::NoCertificate { path });
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(wrong(key))?;
    let config =
        ServerConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions()?;
    let config = config.with_no_client_auth().with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
