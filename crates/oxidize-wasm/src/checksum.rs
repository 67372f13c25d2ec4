//! Checksums of downloads: [`Digest`] while bytes arrive, [`fast_checksum`] when a file comes from the cache.

use sha2::{Digest as _, Sha256};
use twox_hash::XxHash64;

/// SHA-256 and XXH64 of bytes that arrive in pieces. SHA-256 is compared with what the publisher of a file states;
/// XXH64 takes a tenth of its time and finds damage of the cache at every load.
#[derive(Clone)]
pub struct Digest {
    sha256: Sha256,
    fast: XxHash64,
}

impl Default for Digest {
    fn default() -> Digest {
        Digest {
            sha256: Sha256::new(),
            fast: XxHash64::with_seed(0),
        }
    }
}

impl Digest {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        std::hash::Hasher::write(&mut self.fast, bytes);
    }

    /// SHA-256 of the bytes so far, in hexadecimal digits.
    pub fn sha256(&self) -> String {
        let digest = self.sha256.clone().finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// XXH64 of the bytes so far, in hexadecimal digits.
    pub fn fast(&self) -> String {
        format!("{:016x}", std::hash::Hasher::finish(&self.fast))
    }
}

/// XXH64 of a whole file, in hexadecimal digits.
pub fn fast_checksum(bytes: &[u8]) -> String {
    format!("{:016x}", XxHash64::oneshot(0, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_pieces_are_those_of_the_whole() {
        let mut digest = Digest::default();
        digest.update(b"a");
        digest.update(b"bc");
        // Test vectors of FIPS 180-2 and of xxHash.
        assert_eq!(
            digest.sha256(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(digest.fast(), "44bc2cf5ad770999");
        assert_eq!(fast_checksum(b"abc"), digest.fast());
    }
}
