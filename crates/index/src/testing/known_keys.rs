//! A record that this release cannot decode may own any generation of its sample.

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};

use super::client::CALL;
use super::context::Context;
use super::known::with_generation;
use crate::record::layout::Layout;
use crate::store::{Transaction, Write};
use crate::{Known, RecordQuery, Stage};

cases! {
    "known" Keys
    what_cannot_be_read_counts
        "Or one that this release cannot decode may.";
}

async fn what_cannot_be_read_counts(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 4, &["a"]).await?;
    let layout = Layout::new(context.harness().store());
    let txn_store = context.harness().txn_store().await?;
    let put = |key: String, value: &str| Write::put(key, value);
    let writes = vec![
        put(layout.live(&samples[0].sample), "no record"),
        put(layout.live(&samples[1].sample), r#"{"v":99,"all":"new"}"#),
        put(layout.pending(&samples[2].sample), "no record either"),
    ];
    let transaction = Transaction {
        conditions: Vec::new(),
        writes,
    };
    txn_store.transact(&transaction, CALL).await?;
    // The third is live as well; ask for a generation of it that is not.
    let other = with_generation(&samples[2], samples[2].generation.get() - 1)?;
    let asked = [samples[0].clone(), samples[1].clone(), other];
    ensure_eq!(
        context.index().known(&asked, CALL).await?,
        vec![Known::Yes; 3],
        "under their keys"
    );
    // A list moves what it cannot decode into quarantine, from where an operator may put it back.
    context
        .index()
        .records(&RecordQuery::of(Stage::Live), None, 100, CALL)
        .await?;
    let aside = context.index().quarantined(None, 100, CALL).await?;
    ensure!(!aside.is_empty(), "nothing is in quarantine");
    ensure_eq!(
        context.index().known(&asked, CALL).await?,
        vec![Known::Yes; 3],
        "in quarantine"
    );
    Ok(())
}
