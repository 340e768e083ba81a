//! The bytes of a put: to the engine, sealed or as they are, with their checksums.

use std::sync::Arc;

use tensorhold_core::{Deadline, Digest, Result};
use tensorhold_engine::Transfer;

use crate::io::sealed::Seals;
use crate::io::staged::OnDevice;
use crate::io::write::{Digests, Outgoing};
use crate::io::write_sealed::{SampleToSeal, ToSeal};
use crate::memory::device::ObjectMemory;
use crate::ops::put_plan::Record;
use crate::ops::put_reserve::Reserved;
use crate::runtime::config::Residency;
use crate::store::Inner;

impl Inner {
    /// Moves all bytes, and waits for their checksums.
    pub(super) async fn write_and_sum(
        &self,
        reserved: &[Reserved],
        digests: Option<Digests>,
        prefer: &[String],
        deadline: Deadline,
    ) -> (Vec<Result<Record>>, Result<Option<Vec<Vec<Option<Digest>>>>>) {
        let bytes: u64 = reserved.iter().map(|sample| sample.prepared.bytes).sum();
        // Side by side, a short transfer would take several times as long: the engine's threads wait for completions, and
        // checksums take a core from them.
        if bytes <= self.io.object_bytes() {
            let digests = of_all(digests).await;
            return (self.write(reserved, prefer, deadline).await, digests);
        }
        tokio::join!(self.write(reserved, prefer, deadline), of_all(digests))
    }

    /// Moves all bytes, to where the store's residency asks for. Returns for each sample what is to be recorded of it.
    async fn write(&self, reserved: &[Reserved], prefer: &[String], deadline: Deadline) -> Vec<Result<Record>> {
        let mut records = self.write_to_engine(reserved, prefer, deadline).await;
        if self.runtime.config.residency == Residency::Spill {
            let written = reserved.iter().zip(&records).map(|(sample, record)| match record {
                Ok(_) => sample.keys.clone(),
                Err(_) => Vec::new(),
            });
            let seen = self.io.seen_on_ssd(written.collect(), deadline).await;
            for (record, seen) in records.iter_mut().zip(seen) {
                if let Err(error) = seen {
                    *record = Err(error);
                }
            }
        }
        records
    }

    /// Sealed, or unchanged.
    async fn write_to_engine(
        &self,
        reserved: &[Reserved],
        prefer: &[String],
        deadline: Deadline,
    ) -> Vec<Result<Record>> {
        if let Some(seals) = &self.io.seals {
            return self.write_sealed(seals, reserved, prefer, deadline).await;
        }
        let (mut objects, mut on_device) = (Vec::new(), Vec::new());
        for (sample, reservation) in reserved.iter().enumerate() {
            let all = reservation.keys.iter().zip(reservation.prepared.objects());
            for (position, (key, memory)) in all.enumerate() {
                match memory {
                    ObjectMemory::Host(parts) => objects.push(Outgoing {
                        sample,
                        transfer: Transfer::scattered(key.clone(), parts.clone()),
                    }),
                    ObjectMemory::Device(part) => on_device.push(OnDevice {
                        sample,
                        position,
                        key: key.clone(),
                        part: part.clone(),
                        witness: Arc::clone(&reservation.prepared.witness),
                    }),
                }
            }
        }
        let (sent, copied) = tokio::join!(
            self.io.send(objects, reserved.len(), prefer, deadline),
            self.io.send_from_device(on_device, reserved.len(), prefer, deadline)
        );
        let both = |(sent, copied): (Result<()>, Result<_>)| sent.and(copied).map(Record::Copied);
        sent.into_iter().zip(copied).map(both).collect()
    }

    async fn write_sealed(
        &self,
        seals: &Seals,
        reserved: &[Reserved],
        prefer: &[String],
        deadline: Deadline,
    ) -> Vec<Result<Record>> {
        let mut to_seal = ToSeal::default();
        for reservation in reserved {
            let sample = SampleToSeal {
                reference: &reservation.reference,
                nonce: reservation.prepared.nonce,
                tensors: &reservation.prepared.tensors,
                witness: &reservation.prepared.witness,
                keys: &reservation.keys,
            };
            to_seal.add(&self.io, seals, &sample);
        }
        let sent = self.io.send_sealed(seals, to_seal, prefer, deadline).await.into_iter();
        sent.map(|sent| sent.map(|(header, tag)| Record::Seal(header, tag)))
            .collect()
    }
}

/// The checksums of all samples, when they are ready; none if none are computed.
async fn of_all(digests: Option<Digests>) -> Result<Option<Vec<Vec<Option<Digest>>>>> {
    match digests {
        Some(digests) => digests.ready().await.map(Some),
        None => Ok(None),
    }
}

/// The records of samples that were written: their checksums in addition to what is already known of them.
pub(super) fn recorded(
    reserved: &[Reserved],
    written: Vec<Result<Record>>,
    digests: Result<Option<Vec<Vec<Option<Digest>>>>>,
) -> Vec<Result<Record>> {
    let mut digests = match digests {
        Ok(None) => return written,
        Ok(Some(digests)) => digests,
        Err(error) => return written.into_iter().map(|_| Err(error.clone())).collect(),
    };
    let with_digests = |(sample, written): (&Reserved, Result<Record>)| {
        let mut own = digests.get_mut(sample.order).map(std::mem::take).unwrap_or_default();
        written.map(|record| {
            if let Record::Copied(copied) = record {
                for (position, digest) in copied {
                    if let Some(place) = own.get_mut(position) {
                        *place = Some(digest);
                    }
                }
            }
            // A missing one is found when the sample is described.
            Record::Digests(own.into_iter().flatten().collect())
        })
    };
    reserved.iter().zip(written).map(with_digests).collect()
}
