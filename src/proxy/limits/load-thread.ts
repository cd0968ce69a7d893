/** The thread that reads limits of single keys. It ends when it has answered. */
import { parentPort, workerData } from 'node:worker_threads'
import { type LoadRequest, loadHere, type ThreadAnswer } from './load.js'

const tell = (answer: ThreadAnswer): void => parentPort!.postMessage(answer)
loadHere(workerData as LoadRequest).then(
  loaded => tell({ loaded }),
  (error: Error) => tell({ failure: error.message }),
)
