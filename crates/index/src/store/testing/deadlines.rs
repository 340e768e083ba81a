//! Deadlines: a call comes back in time, and says whether it may have done something.

use std::time::Duration;

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Result, Retry};
use tensorhold_custody::Version;

use super::context::{Context, SOON, is_kind};
use crate::store::{Read, Transaction, TxnOutcome, Write, prefix};

cases! { "deadlines"
    of_no_time_have_no_effect "A call whose time is over before anything was sent fails with Unavailable.";
    that_are_short_are_kept "Every call returns within its time; an Ambiguous one may have been applied.";
}

async fn in_time<T>(what: &str, call: impl Future<Output = Result<T>>) -> CaseResult<Result<T>> {
    tokio::time::timeout(SOON, call)
        .await
        .map_err(|_| Failure::new(format!("{what} outlived its deadline by far")))
}

fn must_fail<T>(what: &str, outcome: Result<T>) -> CaseResult {
    match outcome {
        Ok(_) => Err(Failure::new(format!("{what} had no time and went well"))),
        Err(error) => {
            is_kind(&error, ErrorKind::Unavailable)?;
            ensure_eq!(
                error.retry(),
                Retry::Safe,
                "{what} did nothing, so that it may be tried again"
            );
            Ok(())
        }
    }
}

async fn of_no_time_have_no_effect(cx: &Context) -> CaseResult {
    let none = Duration::ZERO;
    let put = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::put("a", "1")],
    };
    must_fail(
        "a read",
        in_time("a read", cx.txn_store().read(&[Read::Key("a".to_owned())], none)).await?,
    )?;
    must_fail(
        "a transaction",
        in_time("a transaction", cx.txn_store().transact(&put, none)).await?,
    )?;
    must_fail(
        "a session",
        in_time("a session", cx.txn_store().open_session(cx.time_to_live(), none)).await?,
    )?;
    must_fail(
        "a watch",
        in_time("a watch", cx.txn_store().watch(prefix("a"), Version(1), none)).await?,
    )?;
    ensure_eq!(cx.get("a").await?, None, "what a transaction without time wrote");
    Ok(())
}

async fn that_are_short_are_kept(cx: &Context) -> CaseResult {
    let mut maybe = 0_u32;
    let mut surely = 0_u32;
    for round in 0..40_u32 {
        let within = Duration::from_micros(50 * u64::from(round));
        let write = Write::put(format!("short/{round:02}"), "1");
        let put = Transaction {
            conditions: Vec::new(),
            writes: vec![write],
        };
        match in_time("a transaction", cx.txn_store().transact(&put, within)).await? {
            Ok(TxnOutcome::Committed(_)) => surely += 1,
            Ok(TxnOutcome::Rejected) => return Err(Failure::new("a transaction without conditions was not applied")),
            Err(error) => {
                is_kind(&error, ErrorKind::Unavailable)?;
                maybe += u32::from(error.retry() == Retry::Ambiguous);
            }
        }
    }
    let there = cx.keys("short/").await?.len();
    let there = u32::try_from(there).unwrap_or(u32::MAX);
    ensure!(
        (surely..=surely + maybe).contains(&there),
        "{there} are there; {surely} were acknowledged and {maybe} may be"
    );
    Ok(())
}
