"""Types of numpy arrays, by the names that signatures use."""

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
IndexArray = npt.NDArray[np.intp]  # positions in other arrays
