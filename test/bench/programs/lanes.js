// @ts-check
/** Runs the measurement of ../lanes.ts. */
// @ts-expect-error: type checks know it by another name
const { lanes } = await import('../lanes.ts')
process.send?.(await lanes({ full: process.argv.includes('--full') }), () => process.exit())
