//! How a file lists its cases.

/// The list of a file's cases: `name "the sentence of the contract";`.
macro_rules! cases {
    ($group:literal $($name:ident $about:literal;)*) => {
        pub(super) const CASES: &[$crate::store::testing::Case] = &[$(
            $crate::store::testing::Case {
                name: concat!($group, "::", stringify!($name)),
                about: $about,
                run: |context| Box::pin($name(context)),
            },
        )*];
    };
}
