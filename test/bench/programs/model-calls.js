// @ts-check
/** Runs ../model-calls.ts: `model-calls.js OPTIONS`. */
// @ts-expect-error: type checks know it by another name
const { modelCalls } = await import('../model-calls.ts')
process.send?.(await modelCalls(JSON.parse(process.argv[2])), () => process.exit())
