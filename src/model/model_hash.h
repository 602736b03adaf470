// SPDX-License-Identifier: Apache-2.0
// Which model a file of statistics or a plan was made for.
#pragma once

#include <string>

#include "model/weights.h"

namespace npumoe {

// 32 hex digits over the family, every hyper-parameter, and of every tensor the file's name, type, shape, and bytes:
// all of a small one, evenly spaced samples (first and last bytes included) of a large one. Costs milliseconds and
// reads well below a megabyte even of a file of many gigabytes. The same for a copy, another name, or any split of the
// same checkpoint. Notices another model, another quantization, fine-tuning (it moves nearly every value), a changed
// norm, bias or small router. Does not notice the tokenizer, the model's name, nor a change that is confined to bytes
// between samples of a large tensor: it is no checksum.
std::string ModelHash(const Model& model);

}  // namespace npumoe
