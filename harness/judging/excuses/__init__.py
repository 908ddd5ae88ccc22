"""Why a deviation beyond the bound may be no mistake, each reason with its proof.

- overflow, regrouping: values that may be infinite or NaN, in the formula's order of
  operations and in any other
- imprecision: what a correct but careless algorithm may lose: `imprecise`
"""
