/** Runs beside each other, one tensor, ranks, and the list of keys: loaded by rare.ts. */
export { CompareScreen } from "./compare/screen";
export { KeyHelp } from "./key_help";
export { RankSelect, Ranks, StepTimes } from "./ranks";
export { Runs } from "./runs/screen";
export { openSave } from "./save_files";
export { TensorScreen } from "./screens/tensor";
export { Trees } from "./screens/trees";
export { TimeScreen } from "./time/screen";
