//! The description of a tensor without its bytes: element type and shape.
//!
//! The element types are all types that torch 2.15 and safetensors 0.8 know. Their text form is torch's name where
//! torch has one. For types that torch packs (`float4_e2m1fn_x2`, `bits1x8`, …) an element is one packed byte, as in
//! torch itself; for the unpacked 4- and 6-bit types of safetensors an element is one value.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::TensorName;

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal torch=$torch:literal safetensors=$safetensors:expr;)*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "&'static str")]
        #[non_exhaustive]
        pub enum DType {
            $(#[doc = concat!("`", $name, "`, ", stringify!($bits), " bits an element.")] $variant,)*
        }

        impl DType {
            /// Every element type.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name: torch's, where torch has the type.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Bits of one element.
            pub const fn bits(self) -> u64 {
                match self { $(Self::$variant => $bits,)* }
            }

            /// The name in torch (`torch.<name>`), if torch has the type.
            pub const fn torch(self) -> Option<&'static str> {
                match self { $(Self::$variant => if $torch { Some($name) } else { None },)* }
            }

            /// The name in a safetensors header, if that format has the type.
            pub const fn safetensors(self) -> Option<&'static str> {
                match self { $(Self::$variant => $safetensors,)* }
            }
        }
    };
}

dtypes! {
    Bool "bool" 8 torch=true safetensors=Some("BOOL");
    Uint8 "uint8" 8 torch=true safetensors=Some("U8");
    Uint16 "uint16" 16 torch=true safetensors=Some("U16");
    Uint32 "uint32" 32 torch=true safetensors=Some("U32");
    Uint64 "uint64" 64 torch=true safetensors=Some("U64");
    Int8 "int8" 8 torch=true safetensors=Some("I8");
    Int16 "int16" 16 torch=true safetensors=Some("I16");
    Int32 "int32" 32 torch=true safetensors=Some("I32");
    Int64 "int64" 64 torch=true safetensors=Some("I64");
    Float16 "float16" 16 torch=true safetensors=Some("F16");
    Bfloat16 "bfloat16" 16 torch=true safetensors=Some("BF16");
    Float32 "float32" 32 torch=true safetensors=Some("F32");
    Float64 "float64" 64 torch=true safetensors=Some("F64");
    Complex32 "complex32" 32 torch=true safetensors=None;
    Bcomplex32 "bcomplex32" 32 torch=true safetensors=None;
    Complex64 "complex64" 64 torch=true safetensors=Some("C64");
    Complex128 "complex128" 128 torch=true safetensors=None;
    Float8E4m3fn "float8_e4m3fn" 8 torch=true safetensors=Some("F8_E4M3");
    Float8E5m2 "float8_e5m2" 8 torch=true safetensors=Some("F8_E5M2");
    Float8E4m3fnuz "float8_e4m3fnuz" 8 torch=true safetensors=Some("F8_E4M3FNUZ");
    Float8E5m2fnuz "float8_e5m2fnuz" 8 torch=true safetensors=Some("F8_E5M2FNUZ");
    Float8E8m0fnu "float8_e8m0fnu" 8 torch=true safetensors=Some("F8_E8M0");
    Float4E2m1fnX2 "float4_e2m1fn_x2" 8 torch=true safetensors=None;
    Float4 "float4" 4 torch=false safetensors=Some("F4");
    Float6E2m3 "float6_e2m3" 6 torch=false safetensors=Some("F6_E2M3");
    Float6E3m2 "float6_e3m2" 6 torch=false safetensors=Some("F6_E3M2");
    Qint8 "qint8" 8 torch=true safetensors=None;
    Quint8 "quint8" 8 torch=true safetensors=None;
    Qint32 "qint32" 32 torch=true safetensors=None;
    Quint4x2 "quint4x2" 8 torch=true safetensors=None;
    Quint2x4 "quint2x4" 8 torch=true safetensors=None;
    Bits1x8 "bits1x8" 8 torch=true safetensors=None;
    Bits2x4 "bits2x4" 8 torch=true safetensors=None;
    Bits4x2 "bits4x2" 8 torch=true safetensors=None;
    Bits8 "bits8" 8 torch=true safetensors=None;
    Bits16 "bits16" 16 torch=true safetensors=None;
    Int1 "int1" 8 torch=true safetensors=None;
    Int2 "int2" 8 torch=true safetensors=None;
    Int3 "int3" 8 torch=true safetensors=None;
    Int4 "int4" 8 torch=true safetensors=None;
    Int5 "int5" 8 torch=true safetensors=None;
    Int6 "int6" 8 torch=true safetensors=None;
    Int7 "int7" 8 torch=true safetensors=None;
    Uint1 "uint1" 8 torch=true safetensors=None;
    Uint2 "uint2" 8 torch=true safetensors=None;
    Uint3 "uint3" 8 torch=true safetensors=None;
    Uint4 "uint4" 8 torch=true safetensors=None;
    Uint5 "uint5" 8 torch=true safetensors=None;
    Uint6 "uint6" 8 torch=true safetensors=None;
    Uint7 "uint7" 8 torch=true safetensors=None;
}

impl DType {
    /// The type behind a safetensors name such as `BF16`.
    pub fn from_safetensors(name: &str) -> Result<Self> {
        Self::find(name, |dtype| dtype.safetensors() == Some(name))
    }

    fn find(name: &str, wanted: impl Fn(&Self) -> bool) -> Result<Self> {
        Self::ALL.iter().copied().find(wanted).ok_or_else(|| {
            Error::invalid(
                "tensor.dtype",
                "no such element type; use torch's name, such as bfloat16",
            )
            .with("dtype", name)
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    /// Reads the name, with or without torch's prefix (`torch.bfloat16`).
    fn from_str(text: &str) -> Result<Self> {
        let name = text.strip_prefix("torch.").unwrap_or(text);
        Self::find(text, |dtype| dtype.name() == name)
    }
}

impl TryFrom<String> for DType {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<DType> for &'static str {
    fn from(dtype: DType) -> Self {
        dtype.name()
    }
}

/// One tensor of a sample: its name, element type and shape. Its bytes lie densely, in row-major order.
///
/// ```
/// use tensorhold_core::{DType, TensorSpec};
///
/// let spec = TensorSpec::new("hidden_state".parse()?, DType::Bfloat16, [1, 4096, 12288])?;
/// assert_eq!(spec.bytes(), 96 << 20);
/// assert_eq!(spec.to_string(), "hidden_state: bfloat16[1, 4096, 12288]");
/// # Ok::<(), tensorhold_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "SpecFields", into = "SpecFields")]
pub struct TensorSpec {
    name: TensorName,
    dtype: DType,
    shape: Vec<u64>,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct SpecFields {
    name: TensorName,
    dtype: DType,
    shape: Vec<u64>,
}

impl TensorSpec {
    /// Checks that the size can be computed and is a whole number of bytes.
    pub fn new(name: TensorName, dtype: DType, shape: impl Into<Vec<u64>>) -> Result<Self> {
        let shape = shape.into();
        let refuse = |why: &str| {
            Error::invalid("tensor.spec", why)
                .with("tensor", &name)
                .with("dtype", dtype)
                .with("shape", format!("{shape:?}"))
        };
        // A zero anywhere makes the tensor empty, however large the other dimensions are.
        let elements = if shape.contains(&0) {
            Some(0)
        } else {
            shape
                .iter()
                .try_fold(1_u64, |product, &dimension| product.checked_mul(dimension))
        };
        let bits = elements
            .and_then(|elements| elements.checked_mul(dtype.bits()))
            .ok_or_else(|| refuse("this tensor is larger than an address space; check its shape"))?;
        if bits % 8 != 0 {
            return Err(refuse(
                "this tensor does not end on a whole byte; pad its last dimension",
            ));
        }
        Ok(Self {
            name,
            dtype,
            shape,
            bytes: bits / 8,
        })
    }

    /// The tensor's name.
    pub fn name(&self) -> &TensorName {
        &self.name
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its dimensions; none for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{:?}", self.name, self.dtype, self.shape)
    }
}

impl TryFrom<SpecFields> for TensorSpec {
    type Error = Error;

    fn try_from(fields: SpecFields) -> Result<Self> {
        Self::new(fields.name, fields.dtype, fields.shape)
    }
}

impl From<TensorSpec> for SpecFields {
    fn from(spec: TensorSpec) -> Self {
        Self {
            name: spec.name,
            dtype: spec.dtype,
            shape: spec.shape,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn spec(dtype: DType, shape: &[u64]) -> Result<TensorSpec> {
        TensorSpec::new(TensorName::new("t")?, dtype, shape)
    }

    #[test]
    fn every_type_of_torch_and_safetensors_is_there_once() {
        let names: BTreeSet<_> = DType::ALL.iter().map(|d| d.name()).collect();
        let torch = DType::ALL.iter().filter_map(|d| d.torch()).count();
        let safetensors: BTreeSet<_> = DType::ALL.iter().filter_map(|d| d.safetensors()).collect();
        assert_eq!((names.len(), torch, safetensors.len()), (50, 47, 22));
        for &dtype in DType::ALL {
            assert_eq!(dtype.name().parse::<DType>().expect("reads back"), dtype);
            assert_eq!(format!("torch.{dtype}").parse::<DType>().expect("reads back"), dtype);
            if let Some(name) = dtype.safetensors() {
                assert_eq!(DType::from_safetensors(name).expect("reads back"), dtype);
            }
        }
        assert!("float7".parse::<DType>().is_err());
        assert!(DType::from_safetensors("bfloat16").is_err());
    }

    #[test]
    fn sizes_are_exact_or_refused() {
        assert_eq!(spec(DType::Int64, &[]).expect("a scalar").bytes(), 8);
        assert_eq!(spec(DType::Float32, &[3, 0, u64::MAX]).expect("empty").bytes(), 0);
        assert_eq!(spec(DType::Float6E2m3, &[4]).expect("whole bytes").bytes(), 3);
        assert_eq!(spec(DType::Float8E4m3fn, &[2, 3]).expect("one byte each").bytes(), 6);
        assert!(spec(DType::Float4, &[3]).is_err(), "one and a half bytes");
        assert!(spec(DType::Uint8, &[1 << 33, 1 << 33]).is_err(), "overflow");
        assert!(spec(DType::Complex128, &[1 << 60]).is_err(), "overflow in bits");
    }

    #[test]
    fn json_is_checked_on_the_way_in() {
        let spec = spec(DType::Bfloat16, &[1, 2]).expect("fits");
        let json = serde_json::to_string(&spec).expect("json");
        assert_eq!(json, r#"{"name":"t","dtype":"bfloat16","shape":[1,2]}"#);
        assert_eq!(serde_json::from_str::<TensorSpec>(&json).expect("reads back"), spec);
        assert!(serde_json::from_str::<TensorSpec>(r#"{"name":"t","dtype":"float4","shape":[1]}"#).is_err());
    }
}
