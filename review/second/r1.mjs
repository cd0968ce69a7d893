import {simulate} from './build/test/instances/simulator.js'
const L=(name,r,c)=>({name,rate:r/1000,capacity:c})
for (const [ra,rb] of [[40,20],[30,20],[20,20],[200,20],[400,100]])
for (const d of [.25,2,5,8,10,12,15,20,30,40,60]){
 const sim=await simulate({stack:[L('own',ra,4*ra),L('all',rb,4*rb)],count:1,sources:[{instance:0,keys:['i','all'],load:{kind:'saturated',depth:60}}],distance:()=>d})
 await sim.run(10000)
 console.log(ra,rb,'d',d,'releases',sim.releases.length,'of',rb*10,'last at',sim.releases.at(-1)?.at.toFixed(0),'waiting',sim.waiting)
}
