// @ts-check
/** Another process of the machine: it spins for 20 % of a core, 4 ms of every 20, from `spin` to `rest`. */

const TURN = 20
const SPIN = 4

let spinning = false

process.on('message', message => {
  spinning = message === 'spin'
  process.send?.(message)
})
process.on('disconnect', () => process.exit())

setInterval(() => {
  const until = performance.now() + (spinning ? SPIN : 0)
  while (performance.now() < until);
}, TURN)

process.send?.('ready')
