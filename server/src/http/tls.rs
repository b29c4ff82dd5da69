//! TLS certificates and keys from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Error in the TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or parsed.
    #[error("{}: {error}", .path.display())]
    File {
        path: PathBuf,
        /// Cause.
        error: pem::Error,
    },
    /// The file contains no certificate.
    #[error("{}: no certificate found in the PEM file", .path.display())]
    NoCertificate { path: PathBuf },
    /// The certificate and the key do not match or are not supported.
    #[error("cannot use this certificate and key: {0}")]
    Unusable(#[from] rustls::Error),
}

/// Loads a certificate chain and its private key, both in PEM format.
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
