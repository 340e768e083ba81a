//! The SBOM: what the module is made of, for programs that look for known faults and for licences (CycloneDX 1.6).
//!
//! It has no serial number and no time, so that it is the same whenever and wherever it is made.
#![expect(
    clippy::disallowed_methods,
    reason = "`json!` unwraps what it makes of texts and lists, which cannot fail"
)]

use anyhow::Result;
use serde_json::{Value, json};

use super::crates::{Crate, Id, Linked};

pub(super) fn text(linked: &Linked) -> Result<String> {
    let version = &linked.module.1;
    let wheel = format!("pkg:pypi/tensorhold@{version}");
    let mut dependencies = vec![json!({"ref": wheel, "dependsOn": [reference(&linked.module)]})];
    dependencies.extend(linked.crates.iter().map(|(id, one)| {
        let on: Vec<String> = one.depends_on.iter().map(reference).collect();
        json!({"ref": reference(id), "dependsOn": on})
    }));
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": wheel,
                "name": "tensorhold",
                "version": version,
                "purl": wheel,
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": linked.crates.iter().map(|(id, one)| component(id, one)).collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&document)?))
}

/// How many crates an SBOM names.
pub(super) fn components(document: &Value) -> Vec<Id> {
    let word = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    let all = document["components"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter()
        .map(|one| (word(one, "name"), word(one, "version")))
        .collect()
}

fn reference((name, version): &Id) -> String {
    // A plus sign, in the versions of some -sys crates, has a meaning of its own in such a name.
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

fn component(id: &Id, one: &Crate) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(id),
        "name": id.0,
        "version": id.1,
        "purl": reference(id),
        // Macros ran in the compiler: none of their code is in the module.
        "scope": if one.linked { "required" } else { "excluded" },
        "licenses": [{"expression": one.licence}],
    });
    if let Some(checksum) = &one.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(repository) = &one.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    component
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_names_every_crate_once_and_depends_on_nothing_else() {
        let linked = Linked::find(&crate::repository(), super::super::HOST).expect("cargo's answer");
        let text = text(&linked).expect("a text");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        let named = components(&document);
        assert_eq!(named, linked.crates.keys().cloned().collect::<Vec<_>>());
        let references: BTreeSet<String> = named.iter().map(reference).collect();
        for entry in document["dependencies"].as_array().expect("a list") {
            for on in entry["dependsOn"].as_array().expect("a list") {
                assert!(
                    references.contains(on.as_str().expect("text")),
                    "{on} is not in the list"
                );
            }
        }
        let of = |name: &str| {
            let all = document["components"].as_array().expect("a list");
            all.iter().find(|one| one["name"] == name).expect("a crate")
        };
        assert_eq!(
            (&of("tokio")["scope"], &of("syn")["scope"]),
            (&json!("required"), &json!("excluded"))
        );
        assert_eq!(of("tokio")["hashes"][0]["content"].as_str().map(str::len), Some(64));
        assert!(of("tensorhold-core").get("hashes").is_none());
    }
}
